"""Horovod's operations on plain values: numbers, arrays, tensors. At once, without gradients.

They return tensors of the backend; in a graph of TensorFlow 1, arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shanty.collectives import array_calls
from shanty.collectives.arguments import op_of
from shanty.collectives.array_calls import Array
from shanty.collectives.process_sets import global_process_set
from shanty.collectives.request import Op, Request
from shanty.keras.backends import array_of, raising, tensor_of
from shanty.keras.compression import Compression

Average, Sum, Adasum = Op.AVERAGE, Op.SUM, Op.ADASUM


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """A tensor: `value` combined over the ranks, element by element.

    op: Average (the default), Sum or Adasum. average: true or false for Average or Sum; use `op`.
    compression: how it travels. prescale_factor, postscale_factor: what the elements are multiplied
    with before and after.
    """
    how = op_of(op, average), prescale_factor, postscale_factor
    smaller, ctx = compression.compress(_plain(value))
    with raising():
        found = reduced(np.asarray(smaller), name, *how)
    return compression.decompress(tensor_of(found), ctx)


def allgather(value: Any, name: str | None = None) -> Any:
    """A tensor: the rows (dimension 0) of all ranks, in the order of ranks."""
    with raising():
        return _tensor(array_calls.allgather([_plain(value)], name, global_process_set, False))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """A tensor: the value of the rank `root_rank`."""
    with raising():
        return _tensor(array_calls.broadcast([_plain(value)], root_rank, name, global_process_set))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """A tensor: this rank's rows of what `allreduce` would return. op: Average or Sum."""
    how = Op(op), 1.0, 1.0, global_process_set, False
    with raising():
        return _tensor(array_calls.reducescatter([_plain(value)], name, *how))


def reduced(
    array: Array, name: str | None, op: Op, prescale: float = 1.0, postscale: float = 1.0
) -> Array:
    """Return an array combined over the ranks, as an array."""
    how = op, prescale, postscale, global_process_set, False
    request = array_calls.allreduce([array], name, *how)
    return array_calls.done(request, global_process_set)[0]


def _plain(value: Any) -> Array:
    array = array_of(value)
    # A float of Python's is what Keras makes of it.
    return array.astype(np.float32) if isinstance(value, float) else np.asarray(array, order="C")


def _tensor(request: Request) -> Any:
    return tensor_of(array_calls.done(request, global_process_set)[0])
