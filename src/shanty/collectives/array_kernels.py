"""`KERNELS`: NumPy's arrays for `shanty.collectives`, as which frameworks show their memory.

Starts MPI.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shanty.collectives.kernels import Kernels

Array = NDArray[Any]

_COMBINED: dict[str, Callable[..., Any]] = {
    "SUM": np.add,
    "AVG": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
}


_HALF = ("float16", "bfloat16")
_ALIGNMENT = 64  # bytes; TensorFlow and JAX take such memory over without a copy


class _ArrayKernels(Kernels):
    """For arrays of any strides. Those that are only read may be read-only."""

    def kind(self, dtype: Any) -> str:
        return str(dtype.name)

    def device(self, tensor: Array) -> str:
        return "cpu"

    def address(self, tensor: Array) -> int:
        return int(tensor.ctypes.data)

    def readable(self, tensor: Array) -> Array:
        return tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)

    def writable(self, tensor: Array) -> Array:
        return tensor if tensor.flags.c_contiguous else aligned(tensor.shape, tensor.dtype)

    def joined(self, tensors: Sequence[Array]) -> Array:
        return np.concatenate([each.reshape(-1) for each in tensors])

    def room_for(self, tensors: Sequence[Array]) -> Array:
        return aligned((sum(each.size for each in tensors),), tensors[0].dtype)

    def empty(self, shape: Sequence[int], dtype: Any, near: Any = "cpu") -> Array:
        return aligned(shape, dtype)

    def zeros(self, shape: Sequence[int], dtype: Any, device: str) -> Array:
        return np.zeros(tuple(shape), dtype)

    def view(self, memory: memoryview, dtype: Any, begin: int, shape: Sequence[int]) -> Array:
        count = math.prod(shape)
        return np.frombuffer(memory, dtype, count, begin * dtype.itemsize).reshape(tuple(shape))

    def shaped(self, tensor: Array, shape: Sequence[int]) -> Array:
        return tensor.reshape(tuple(shape))

    def split(self, tensor: Array, counts: Sequence[int] | int) -> Sequence[Array]:
        if isinstance(counts, int):
            return [tensor[at : at + counts] for at in range(0, max(len(tensor), 1), counts)]
        ends = accumulate(counts)
        return [tensor[end - count : end] for count, end in zip(counts, ends, strict=True)]

    def copy(self, into: Array, tensor: Array) -> None:
        np.copyto(into, tensor, casting="unsafe")

    def copy_all(self, into: Sequence[Array], tensors: Sequence[Array]) -> None:
        for target, tensor in zip(into, tensors, strict=True):
            np.copyto(target, tensor, casting="unsafe")

    def clone(self, tensor: Array) -> Array:
        return tensor.copy(order="C")

    def convert(self, tensor: Array, dtype: str) -> Array:
        return tensor.astype(dtype)

    def scale(self, tensors: Sequence[Array], factor: Any) -> None:
        for each in tensors:
            # float16 would take the factor as a float16, too, which may not know it
            kind = np.float32 if each.dtype.name in _HALF else None
            np.multiply(each, factor, out=each, casting="unsafe", dtype=kind)

    def divide(self, tensors: Sequence[Array], ranks: int) -> None:
        for each in tensors:
            if each.dtype.kind in "iu":  # numpy's own integer division rounds down
                wide = each.astype(np.int64)  # a small type may not know the number of ranks
                self.copy(each, (wide - np.fmod(wide, ranks)) // ranks)
            else:
                np.divide(each, ranks, out=each)

    def combine(self, name: str, totals: list[Array], terms: list[Array]) -> None:
        for total, term in zip(totals, terms, strict=True):
            _COMBINED[name](total, term, out=total, casting="unsafe")

    def combine_into(
        self, name: str, given: list[Array], terms: list[Array], into: list[Array]
    ) -> None:
        for each, term, result in zip(given, terms, into, strict=True):
            _COMBINED[name](each, term, out=result, casting="unsafe")

    def finish(self) -> None:
        """Nothing is under way on any device."""

    def product(self, one: Array, two: Array) -> float:
        x, y = (each.reshape(-1).astype(np.float64) for each in (one, two))
        return float(x @ y)

    def adaptive_sum(self, one: Array, two: Array) -> Array:
        # of arrays without dimensions numpy makes numbers, perhaps of another type
        return np.asarray(super().adaptive_sum(one, two), one.dtype)


KERNELS = _ArrayKernels()


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    """Return new memory that begins at a multiple of 64 bytes."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    made: Array = room[start : start + nbytes].view(kind).reshape(tuple(shape))
    return made
