"""The state of a training in PyTorch: models, optimizers, samplers and plain objects."""

from __future__ import annotations

import copy
from typing import Any

import torch

from shanty.torch.hvd import functions, world
from shanty.torch.hvd.elastic.sampler import ElasticSampler
from shanty.torch.hvd.elastic.state import ObjectState


class StateHandler:
    """Keeps, restores and broadcasts one attribute of a TorchState.

    A handler for a class of one's own, put into the registry, makes TorchState know it.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Copy its state, in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was copied last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state, on every rank."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle another object from now on."""
        self.value = value
        self.save()


class _DictHandler(StateHandler):
    """For what has state_dict() and load_state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.saved: Any = None
        self.save()

    def save(self) -> None:
        """Copy its state_dict."""
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Load what was copied last."""
        # An optimizer goes on to work with the very tensors that it is given.
        self.value.load_state_dict(copy.deepcopy(self.saved))


class ModelStateHandler(_DictHandler):
    """For a torch.nn.Module."""

    def sync(self) -> None:
        """Take over rank 0's parameters and buffers."""
        functions.broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_DictHandler):
    """For a torch.optim.Optimizer, also one that DistributedOptimizer made."""

    def sync(self) -> None:
        """Take over rank 0's state and options."""
        functions.broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_DictHandler):
    """For an ElasticSampler."""

    def sync(self) -> None:
        """Go on in the data where rank 0 is."""
        self.value.load_state_dict(functions.broadcast_object(self.value.state_dict()))


Registry = list[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Which class is handled by which handler; the first that fits is taken."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replace that list, for the TorchStates that are made from then on."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """The state of a training: `TorchState(model=…, optimizer=…, sampler=…, epoch=0)`.

    model, optimizer: optional. kwargs: anything else, more models and optimizers too. Each is an
    attribute by its name. Modules, optimizers and ElasticSamplers are copied by their
    state_dict, other objects are kept as they are and must be such that pickle can write them.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers: dict[str, StateHandler] = {}
        plain = {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            handler = _handler(value)
            if handler is None:
                plain[name] = value
            else:
                setattr(self, name, value)
                self._handlers[name] = handler
        super().__init__(functions.broadcast_object, world.rank, **plain)

    def save(self) -> None:
        """Copy all of it, in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to what was copied last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Take over rank 0's state, on every rank."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def kept(self) -> Any:
        """What was copied last; None where a handler of one's own keeps it in its own way."""
        parts = {}
        for name, handler in self._handlers.items():
            if not isinstance(handler, _DictHandler):
                return None
            parts[name] = handler.saved
        return {"handled": parts, "plain": super().kept()}

    def take_up(self, kept: Any) -> None:
        """Make what another process kept the state and its copy."""
        for name, handler in self._handlers.items():
            if isinstance(handler, _DictHandler):
                handler.saved = kept["handled"][name]
                handler.restore()
        super().take_up(kept["plain"])

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a handled one is replaced by another object to handle."""
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers and hasattr(self, name):
            handlers[name].set_value(value)
        super().__setattr__(name, value)


def _handler(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
