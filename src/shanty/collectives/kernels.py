"""The tensors of a framework as MPI sees them, by `Kernels`, which know it; and their reductions.

Collectives pass tensors on without looking into them. A tensor has `dtype` (with an `itemsize`),
`shape`, `nbytes` and `itemsize`; a flat one can be sliced. All else is asked of the kernels.
Tensors of any stride go in and out in their logical (row-major) order, since the other ranks'
strides may differ. Importing this module starts MPI.

MPI moves elements as plain words of their size, so every dtype can travel. A reduction needs the
true type. For half precision no MPI type works everywhere (bfloat16 has none, float16 has none on
Open MPI 4.1): it is accumulated in float32 and rounded once, at the end. A sum is therefore at
least as exact as if each step were rounded. How it travels is in `operations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from mpi4py import MPI

LARGEST = 1 << 30
"""Bytes that one MPI call moves at most: counts have 32 bits on many, and some count bytes."""

Tensor = Any
"""A framework's own tensor."""

Message = tuple[Any, ...]
"""A buffer as mpi4py takes it: memory, perhaps counts, datatype. The memory is a bare address:
the caller keeps the tensor until MPI is done.
"""

_WORDS = {
    1: MPI.UINT8_T,
    2: MPI.UINT16_T,
    4: MPI.UINT32_T,
    8: MPI.UINT64_T,
    16: MPI.C_DOUBLE_COMPLEX,
}

_NUMBERS = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "int16": MPI.INT16_T,
    "int32": MPI.INT32_T,
    "int64": MPI.INT64_T,
    "uint8": MPI.UINT8_T,
    "uint16": MPI.UINT16_T,
    "uint32": MPI.UINT32_T,
    "uint64": MPI.UINT64_T,
    "complex64": MPI.C_FLOAT_COMPLEX,
    "complex128": MPI.C_DOUBLE_COMPLEX,
}
_HALF = ("float16", "bfloat16")
_COMPLEX = ("complex64", "complex128", "complex32")

_OPS = {
    "SUM": MPI.SUM,
    "AVG": MPI.SUM,  # divided afterwards
    "PREMUL_SUM": MPI.SUM,  # multiplied before
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
# A bool is kept in a byte of 0 or 1. A sum of bools is true where any is.
_BOOL_OPS = {**_OPS, "SUM": MPI.MAX, "PRODUCT": MPI.MIN}


def word(dtype: Any) -> MPI.Datatype:
    """Return the MPI datatype under which elements of `dtype` are moved, bit for bit."""
    return _WORDS[dtype.itemsize]


class Kernels(Protocol):
    """The memory and the arithmetic of one framework's tensors, which derives from this class."""

    # ---- what a tensor is --------------------------------------------------------------------

    def kind(self, dtype: Any) -> str:
        """Return the dtype's name: "float32"."""

    def device(self, tensor: Tensor) -> str:
        """Return the kind of device that it is on; "cpu" for host memory."""

    def address(self, tensor: Tensor) -> int:
        """Return where the memory of a dense tensor begins, once it may be read there."""

    # ---- memory ------------------------------------------------------------------------------

    def readable(self, tensor: Tensor) -> Tensor:
        """Return a dense tensor with these elements where MPI can read it: itself, or a copy."""

    def writable(self, tensor: Tensor) -> Tensor:
        """Return dense room for the elements: `tensor`, or new memory for `settle` to copy."""

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the elements of all of them, end to end: a view where they lie so already."""

    def room_for(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return dense room for the elements of all, end to end, for `spread` to copy."""

    def empty(self, shape: Sequence[int], dtype: Any, near: Tensor | str = "cpu") -> Tensor:
        """Return new memory. dtype: or its name. near: a tensor on the same device, or its name."""

    def zeros(self, shape: Sequence[int], dtype: Any, device: str) -> Tensor:
        """Return new memory, all zero."""

    def view(self, memory: memoryview, dtype: Any, begin: int, shape: Sequence[int]) -> Tensor:
        """Return a tensor over shared memory, from the element `begin` on."""

    def shaped(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the same memory in another shape; -1 stands for the remaining size."""

    def split(self, tensor: Tensor, counts: Sequence[int] | int) -> Sequence[Tensor]:
        """Return views of these numbers of rows; for one number: as many in all but the last."""

    def rows(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the views of its rows."""
        return list(tensor)

    def copy(self, into: Tensor, tensor: Tensor) -> None:
        """Copy the elements, converted if need be."""

    def copy_all(self, into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Copy many tensors into as many others."""

    def clone(self, tensor: Tensor) -> Tensor:
        """Return a dense copy."""

    # ---- arithmetic --------------------------------------------------------------------------

    def convert(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a copy in the dtype of that name."""

    def scale(self, tensors: Sequence[Tensor], factor: Any) -> None:
        """Multiply each by `factor` in place; integers are cut off afterwards."""

    def divide(self, tensors: Sequence[Tensor], ranks: int) -> None:
        """Turn sums over this many ranks into averages, in place; integers are cut off."""

    def combine(self, name: str, totals: list[Tensor], terms: list[Tensor]) -> None:
        """Each total becomes its reduction with its term. name: as in `reduction`."""

    def combine_into(
        self, name: str, given: list[Tensor], terms: list[Tensor], into: list[Tensor]
    ) -> None:
        """Each of `into` becomes the reduction of what is given with its term."""
        self.copy_all(into, given)
        self.combine(name, into, terms)

    def fold(self, name: str, parts: Sequence[Tensor], total: Tensor) -> None:
        """`total` becomes the reduction of the parts in their order, in its dtype."""
        self.copy(total, parts[0])
        for part in parts[1:]:  # three times as fast as a sum over rows
            self.combine(name, [total], [part])

    def product(self, one: Tensor, two: Tensor) -> float:
        """Return the inner product of two tensors, summed up in float64."""

    def adaptive_sum(self, one: Tensor, two: Tensor) -> Tensor:
        """Return Adasum of two tensors (see `executor`)."""
        both, of_one, of_two = (
            self.product(*pair) for pair in ((one, two), (one, one), (two, two))
        )
        first = 1 - both / (2 * of_one) if of_one else 1.0
        second = 1 - both / (2 * of_two) if of_two else 1.0
        return one * first + two * second

    # ---- devices -----------------------------------------------------------------------------

    def writing(self) -> AbstractContextManager[object]:
        """Return a context in which results may be written."""
        return nullcontext()

    def finish(self) -> None:
        """Wait for what the device still does for this thread."""

    # ---- the same for all frameworks -----------------------------------------------------------

    def spec(self, tensor: Tensor, datatype: MPI.Datatype | None = None) -> Message:
        """Return the memory of a dense tensor; moved as plain words unless a datatype is given."""
        memory = MPI.buffer.fromaddress(self.address(tensor), tensor.nbytes)
        return memory, datatype if datatype is not None else _WORDS[tensor.itemsize]

    def vector(self, tensor: Tensor, counts: Sequence[int]) -> Message:
        """Return it for the calls with one count (in elements) for each rank, laid end to end."""
        memory = MPI.buffer.fromaddress(self.address(tensor), tensor.nbytes)
        return memory, counts, _WORDS[tensor.itemsize]

    def flat(self, tensor: Tensor) -> Tensor:
        """Return a dense tensor in one dimension."""
        return self.shaped(tensor, (-1,))

    def pieces(self, dense: Tensor, largest: int | None = None) -> Sequence[Tensor]:
        """Return the elements in order, in parts of at most `largest` bytes [LARGEST]."""
        limit = LARGEST if largest is None else largest
        if dense.nbytes <= limit:
            return (dense,)
        return self.split(self.flat(dense), limit // dense.itemsize)

    def settle(self, room: Tensor, tensor: Tensor) -> None:
        """Bring what was written to `room` into `tensor`, if it is not there already."""
        if room is not tensor:
            self.copy(tensor, room)

    def spread(self, room: Tensor, tensors: Sequence[Tensor]) -> None:
        """Bring the elements of `room` into the tensors, if they are not there already."""
        counts = [elements(each) for each in tensors]
        for tensor, count, end in zip(tensors, counts, accumulate(counts), strict=True):
            piece = room[end - count : end]
            if count and self.address(piece) != self.address(tensor):
                self.copy(tensor, self.shaped(piece, tensor.shape))

    def apart(self, tensor: Tensor, output: Tensor) -> Tensor:
        """Return `tensor` to read while `output` is written: a copy if they share memory, which MPI
        forbids for input and output.
        """
        start, begin = self.address(tensor), self.address(output)
        shared = start < begin + output.nbytes and begin < start + tensor.nbytes
        return self.clone(tensor) if shared else tensor


def elements(tensor: Tensor) -> int:
    """Return the number of its elements."""
    return int(tensor.nbytes) // int(tensor.itemsize)


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction of elements of one dtype.

    datatype, op: as passed to MPI.
    carrier: the name of the dtype that the elements are converted to for it, None if MPI takes
        them as they are.
    average: whether the sum is divided by the number of ranks (before it is rounded back);
        towards zero for integers, as NCCL does.
    name: of the operation, as torch spells it.
    kernels: of the tensors.
    factor: what each rank's elements are multiplied with first (PREMUL_SUM).
    after: what the result is multiplied with, in the carrier, before it is rounded back.
    """

    datatype: MPI.Datatype
    op: MPI.Op
    carrier: str | None
    average: bool
    name: str
    kernels: Kernels
    factor: Any = None
    after: float = 1.0

    def divide(self, total: Tensor, ranks: int) -> None:
        """Turn a reduction over `ranks` ranks into what was asked for, in place."""
        if self.average:
            self.kernels.divide([total], ranks)
        if self.after != 1:
            self.kernels.scale([total], self.after)


def reduction(dtype: Any, name: str, kernels: Kernels) -> Reduction:
    """Find the reduction of `dtype` by that name. TypeError where that has no meaning."""
    if name not in _OPS:
        raise TypeError(f"ReduceOp.{name} is not supported by the mpi backend.")
    kind = kernels.kind(dtype)
    fractional = kind in _COMPLEX or "float" in kind
    if name in ("BAND", "BOR", "BXOR") and fractional:
        raise TypeError(f"ReduceOp.{name} needs integers or bools, not {dtype}.")
    if name == "PREMUL_SUM" and not fractional:
        raise TypeError(f"ReduceOp.PREMUL_SUM needs floating point numbers, not {dtype}.")
    if kind == "bool":
        if name == "AVG":
            raise TypeError(f"ReduceOp.{name} of bools has no meaning; convert to float first.")
        return Reduction(MPI.UINT8_T, _BOOL_OPS[name], None, False, name, kernels)
    if kind in _COMPLEX and name in ("MIN", "MAX"):
        raise TypeError(f"ReduceOp.{name} is not defined for complex numbers ({dtype}).")
    average = name == "AVG"
    if average and kind in ("uint16", "uint32", "uint64"):
        raise TypeError(f"ReduceOp.AVG of {dtype}: torch cannot divide it; convert to int64 first.")
    if kind in _HALF:
        return Reduction(MPI.FLOAT, _OPS[name], "float32", average, name, kernels)
    if kind not in _NUMBERS:
        raise TypeError(f"{dtype} can be sent but not reduced; convert to float32 first.")
    return Reduction(_NUMBERS[kind], _OPS[name], None, average, name, kernels)
