"""Reads, writes and sends the variables of a model and its optimizer, on any backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shanty.collectives import array_calls
from shanty.collectives.array_calls import Array
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.keras.backends import array_of


def of_model(model: Any) -> list[Any]:
    """Return the variables of the model, without those of its optimizer and metrics."""
    return list(model.weights)


def of_optimizer(optimizer: Any) -> list[Any]:
    """Return the variables that the optimizer has: none before it is built."""
    if optimizer is None:
        return []
    found = optimizer.variables
    return list(found() if callable(found) else found)


def build(optimizer: Any, model: Any) -> bool:
    """Have the optimizer make its variables for the model's; returns whether it can."""
    if not hasattr(optimizer, "build"):
        return False  # of Keras 2, and older still: it makes them as it needs them
    if not getattr(optimizer, "built", False) and not getattr(optimizer, "_built", False):
        optimizer.build(model.trainable_variables)
    return True


def settle(model: Any) -> None:
    """Store the state of training in the variables: while it runs, JAX keeps it elsewhere."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def read(variables: Iterable[Any]) -> list[Array]:
    """Return copies of their values."""
    return [np.array(array_of(each)) for each in variables]


def write(variables: Iterable[Any], values: Iterable[Array]) -> None:
    """Set their values, as far as there are both."""
    for variable, value in zip(variables, values, strict=False):
        variable.assign(value)


def broadcast(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give all ranks the values that the variables of the rank `root_rank` have.

    All ranks raise HorovodInternalError if their variables differ.
    """
    if not variables:
        return
    arrays = [np.asarray(array_of(each), order="C") for each in variables]
    request = array_calls.broadcast(arrays, root_rank, "broadcast_variables", process_set)
    write(variables, array_calls.done(request, process_set))


def broadcast_globals(root_rank: int, session: Any) -> Any:
    """Give all ranks the global variables of `root_rank`, in a session of TensorFlow 1."""
    from shanty.tensorflow_ops.ops import broadcast_global_variables

    return session.run(broadcast_global_variables(root_rank))
