"""`shanty.torch.elastic`: training that goes back to its last commit, as `hvd.elastic`.

The state of a training in PyTorch: models, optimizers, samplers and plain objects. All that needs
no torch is in `shanty.collectives.elastic`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from shanty.collectives import elastic, world
from shanty.collectives.elastic import HostsUpdatedInterrupt, ObjectState, State
from shanty.torch.elastic_ddp import ddp
from shanty.torch.hvd import functions
from shanty.torch.hvd.api import init

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState"]
__all__ += ["ddp", "run", "run_fn"]

Result = TypeVar("Result")

FORMAT = elastic.Format(
    load=lambda path: torch.load(path, map_location="cpu", weights_only=False),
    save=lambda kept, file: torch.save(kept, file),
)
"""Of the files of commits."""


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Return `func(state, …)`, which trains, as a function that survives failures.

    The state is broadcast from rank 0 before it begins. A HorovodInternalError in it takes all
    ranks back to their last commit, and it is called again: at most three times without
    another commit, then the error is raised. And when the same command is run again after a run
    that did not end well, it continues from the last commit that was written to disk, on any
    number of ranks; SHANTY_RESUME=0 starts afresh.
    """
    return run_fn(func, _reset)


def run_fn(func: Callable[..., Result], reset: Callable[[], object]) -> Callable[..., Result]:
    """As `run`; `reset` ends Horovod and starts it again."""
    return elastic.run_fn(func, reset, FORMAT)


def _reset() -> bool:
    return world.restart(init)


class ElasticSampler(Sampler[int]):
    """Deals the samples of an epoch out to the ranks, without those already recorded.

    dataset: has constant length. shuffle: a new order in every epoch. seed: of that order, the same
    on all ranks. In a TorchState it continues from the last commit, also in a run with another
    number of ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all samples. To be called at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that each rank has done a batch of `batch_size` samples."""
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Sequence[int]) -> None:
        """Note that each rank has done as many samples as these, the next ones of its share."""
        self.record_batch(0, len(indices))

    @property
    def processed_indices(self) -> set[int]:
        """The samples of this epoch that all ranks together have done."""
        return set(self._order()[: self.processed_num])

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and how many samples of it all ranks together have done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where that state was, with the ranks that there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal what is left of the epoch out to the ranks that there are now."""
        self.num_replicas, self.rank = world.size(), world.rank()
        self.remaining_indices = self._order()[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def _order(self) -> list[int]:
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        return indices

    def __iter__(self) -> Iterator[int]:
        """Deal out this rank's samples; the first ones come again where shares are uneven."""
        left = self.remaining_indices
        short = self.total_size - len(left)
        padded = left + [left[index % len(left)] for index in range(short)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        """Return how many samples are left for each rank."""
        return self.num_samples


class StateHandler(elastic.Kept):
    """Keeps, restores and broadcasts one attribute of a TorchState.

    A handler for a class of one's own, put into the registry, makes TorchState know it.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

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
    """For a torch.optim.Optimizer, also from DistributedOptimizer."""

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
    """Return which class is handled by which handler; the first that fits is taken."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replace that list, for the TorchStates that are made from then on."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """The state of a training: `TorchState(model=…, optimizer=…, sampler=…, epoch=0)`.

    model, optimizer: optional. kwargs: anything else, more models and optimizers too. Each is an
    attribute by its name. Modules, optimizers and ElasticSamplers are copied by their
    state_dict; other objects are kept as they are, and pickle must be able to write them.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers: dict[str, StateHandler] = {}
        plain = {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            handler = next((made for kind, made in _registry if isinstance(value, kind)), None)
            if handler is None:
                plain[name] = value
            else:
                setattr(self, name, value)
                self._handlers[name] = handler(value)
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
            handler.save()  # a new rank has nothing else to go back to
        super().sync()

    def kept(self) -> Any:
        """Return what was copied last; None where a handler of one's own keeps it otherwise."""
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
