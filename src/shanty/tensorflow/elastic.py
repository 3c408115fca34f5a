"""`hvd.elastic`: training that goes back to its last commit.

The state of a training in TensorFlow: variables, a Keras model with its optimizer, and plain
objects. All that needs no TensorFlow is in `shanty.collectives.elastic`.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shanty.collectives import elastic, world
from shanty.collectives.elastic import HostsUpdatedInterrupt, ObjectState, State
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.objects import broadcast_object
from shanty.tensorflow import functions
from shanty.tensorflow.api import init
from shanty.tensorflow.installed import tf, v1

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State"]
__all__ += ["TensorFlowKerasState", "TensorFlowState", "run"]

Result = TypeVar("Result")


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


FORMAT = elastic.Format(load=_load, save=pickle.dump)
"""Of the files of commits."""


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Make a function that trains, `func(state, …)`, one that survives failures.

    The state is broadcast from rank 0 before it begins. A HorovodInternalError in it, also one that
    TensorFlow tells of, takes all ranks back to the last commit, from which it begins anew. Where
    the run itself ends, the next one of the same command goes on from the last commit.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Result:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            if HorovodInternalError.__name__ not in str(error.message):
                raise
            raise HorovodInternalError(_reason(error.message)) from error

    return elastic.run_fn(translated, _reset, FORMAT)


def _reset() -> None:
    world.shutdown()
    init()


def _reason(message: str) -> str:
    """Return what the error said that is within TensorFlow's."""
    start = message.find(HorovodInternalError.__name__)
    sentence, _, _ = message[start:].partition("\nTraceback (most recent call last):")
    return sentence.partition(": ")[2]


class _VariablesState(ObjectState):
    """Variables of TensorFlow or Keras, and plain objects."""

    def __init__(self, **kwargs: Any) -> None:
        self._values: list[Any] = []
        super().__init__(broadcast_object, world.rank, **kwargs)

    def variables(self) -> Sequence[Any]:
        """Return the variables, in an order that is the same on all ranks."""
        raise NotImplementedError

    def save(self) -> None:
        """Copy all of it, in memory."""
        self._values = self._read()
        super().save()

    def restore(self) -> None:
        """Go back to what was copied last. Variables that were made since stay as they are."""
        self._write(self._values)
        super().restore()

    def sync(self) -> None:
        """Take over rank 0's state, on every rank."""
        self._broadcast()
        self._values = self._read()
        super().sync()

    def kept(self) -> Any:
        """Return what was copied last."""
        return {"variables": self._values, "plain": super().kept()}

    def take_up(self, kept: Any) -> None:
        """Make what another process kept the state and its copy."""
        self._values = kept["variables"]
        self._write(self._values)
        super().take_up(kept["plain"])

    def _read(self) -> list[Any]:
        return [each.numpy().copy() for each in self.variables()]

    def _write(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self.variables(), values, strict=False):
            variable.assign(value)

    def _broadcast(self) -> None:
        functions.broadcast_variables(self.variables(), root_rank=0)


class TensorFlowKerasState(_VariablesState):
    """The state of a training of a Keras model: `TensorFlowKerasState(model, batch=0, epoch=0)`.

    model: built. optimizer: the model's own where it is None. backend: not needed. kwargs:
    anything else, each an attribute by its name, such as pickle can write.
    Raises ValueError for a model that has not been built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not getattr(model, "built", False):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)
        self.save()

    def variables(self) -> Sequence[Any]:
        """Return those of the model, and those that the optimizer has by now."""
        found = list(self.model.variables)
        if self.optimizer is not None:
            its = self.optimizer.variables
            found += its() if callable(its) else its
        return found


class TensorFlowState(_VariablesState):
    """The state of a training with variables of its own: `TensorFlowState([v, w], epoch=0)`.

    variables: None: the global ones, of a graph of TensorFlow 1. session: that of such a graph.
    kwargs: anything else, each an attribute by its name, such as pickle can write.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self._variables = list(v1.global_variables() if variables is None else variables)
        self.session = session or (None if tf.executing_eagerly() else v1.get_default_session())
        self._operations: dict[str, Any] = {}
        super().__init__(**kwargs)
        self.sync()

    def variables(self) -> Sequence[Any]:
        """Return the variables."""
        return self._variables

    def _read(self) -> list[Any]:
        if self.session is None:
            return super()._read()
        found: list[Any] = self.session.run(self._variables)
        return found

    def _write(self, values: Sequence[Any]) -> None:
        if self.session is None:
            super()._write(values)
            return
        for variable, value in zip(self._variables, values, strict=False):
            variable.load(value, self.session)

    def _broadcast(self) -> None:
        if self.session is None:
            super()._broadcast()
            return
        operation = self._operations.get("broadcast")
        if operation is None:
            made = functions.broadcast_variables(self._variables, root_rank=0)
            operation = self._operations["broadcast"] = made
        self.session.run(operation)
