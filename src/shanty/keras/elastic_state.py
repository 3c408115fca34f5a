"""States of a training that consist of variables, and `run`, which returns to the last commit.

For Keras on any backend; TensorFlow's own (`shanty.tensorflow.elastic`) stand on these.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shanty.collectives import elastic, world
from shanty.collectives.array_calls import Array
from shanty.collectives.elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from shanty.collectives.elastic import ObjectState
from shanty.collectives.errors import HorovodInternalError as HorovodInternalError
from shanty.collectives.objects import broadcast_object
from shanty.keras import variables
from shanty.keras.names import init

Result = TypeVar("Result")


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


FORMAT = elastic.Format(load=_load, save=pickle.dump)
"""Of the files of commits."""


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a function that trains, `func(state, …)`, so that it survives failures.

    The state is broadcast from rank 0 before the function begins. After a HorovodInternalError in
    it, even if TensorFlow or JAX reports it, all ranks go back to the last commit and call it
    again. If the run itself ends, the next run of the same command continues from the last commit.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Result:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            text = str(error)
            start = text.find(f"{HorovodInternalError.__name__}: ")
            if start < 0:
                raise
            sentence = text[start:].partition("\nTraceback (most recent call last):")[0]
            raise HorovodInternalError(sentence.partition(": ")[2]) from error

    return elastic.run_fn(translated, _reset, FORMAT)


def _reset() -> bool:
    return world.restart(init)


class VariablesState(ObjectState):
    """Variables, in an order that is the same on all ranks, and plain objects by their names."""

    def __init__(self, **kwargs: Any) -> None:
        self._values: Sequence[Array] = []
        super().__init__(broadcast_object, world.rank, **kwargs)

    def variables(self) -> Sequence[Any]:
        """Return the variables."""
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

    def _read(self) -> Sequence[Array]:
        return variables.read(self.variables())

    def _write(self, values: Sequence[Array]) -> None:
        variables.write(self.variables(), values)

    def _broadcast(self) -> None:
        variables.broadcast(self.variables(), root_rank=0)


class KerasState(VariablesState):
    """The state of a training of a Keras model: `KerasState(model, batch=0, epoch=0)`.

    model: built. optimizer: the model's own where it is None. kwargs: anything else, each an
    attribute by its name, such as pickle can write.
    Raises ValueError for a model that has not been built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", False):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)
        self.save()

    def variables(self) -> Sequence[Any]:
        """Return the variables of the model, and those that the optimizer has."""
        return [*variables.of_model(self.model), *variables.of_optimizer(self.optimizer)]

    def _read(self) -> Sequence[Array]:
        variables.settle(self.model)
        return super()._read()

    def _write(self, values: Sequence[Array]) -> None:
        self._build(len(values) - len(variables.of_model(self.model)))
        super()._write(values)

    def _broadcast(self) -> None:
        there = broadcast_object(len(variables.of_optimizer(self.optimizer)))
        self._build(there)
        mine = self.variables()
        variables.broadcast(mine[: len(variables.of_model(self.model)) + there], root_rank=0)

    def _build(self, count: int) -> None:
        """Have the optimizer make its variables, if there are to be more than it has."""
        if self.optimizer is not None and count > len(variables.of_optimizer(self.optimizer)):
            variables.build(self.optimizer, self.model)
