"""torch's element types and reductions in MPI's terms. Importing this module starts MPI.

What MPI only moves, it moves as plain words of the element's size, so every dtype can travel.
What it reduces needs its true type. Half precision (float16, bfloat16) has none that works
everywhere (none for bfloat16 on any MPI, none for float16 on Open MPI 4.1): it is accumulated in
float32 and rounded once, at the end. A sum is therefore at least as exact as one that rounds at
every step. How it travels is in `collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed import ReduceOp

_WORDS = {
    1: MPI.UINT8_T,
    2: MPI.UINT16_T,
    4: MPI.UINT32_T,
    8: MPI.UINT64_T,
    16: MPI.C_DOUBLE_COMPLEX,
}

_NUMBERS = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
}

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

# torch keeps a bool in a byte of 0 or 1. A sum of bools is true where any is.
_BOOL_OPS = {
    "SUM": MPI.MAX,
    "PRODUCT": MPI.MIN,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}


# Of what is accumulated in float32. A row at a time is three times as fast as torch.sum over rows.
_FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": Tensor.add_,
    "AVG": Tensor.add_,
    "PRODUCT": Tensor.mul_,
    "MIN": lambda total, part: torch.minimum(total, part, out=total),
    "MAX": lambda total, part: torch.maximum(total, part, out=total),
}


def word(dtype: torch.dtype) -> MPI.Datatype:
    """The MPI datatype under which elements of `dtype` are moved, bit for bit."""
    return _WORDS[dtype.itemsize]


@dataclass(frozen=True, slots=True)
class Reduction:
    """How elements of one dtype are reduced.

    datatype, op: what MPI is told.
    carrier: the dtype that the elements are converted to for it, None if MPI takes them as is.
    average: whether the sum is divided by the number of ranks (before it is rounded back);
        towards zero for integers, as NCCL does.
    name: of the operation, as torch spells it.
    factor: what each rank's elements are multiplied with first (PREMUL_SUM).
    """

    datatype: MPI.Datatype
    op: MPI.Op
    carrier: torch.dtype | None
    average: bool
    name: str
    factor: float | Tensor | None = None

    def fold(self, parts: Sequence[Tensor], total: Tensor) -> None:
        """`total` becomes the reduction of the parts in their order, in its dtype; not divided."""
        total.copy_(parts[0])
        for part in parts[1:]:
            _FOLDS[self.name](total, part)

    def divide(self, total: Tensor, ranks: int) -> None:
        """Turn a sum over `ranks` ranks into what was asked for, in place."""
        if self.average:
            whole = not (total.is_floating_point() or total.is_complex())
            total.div_(ranks, rounding_mode="trunc" if whole else None)


def reduction(dtype: torch.dtype, op: ReduceOp | ReduceOp.RedOpType) -> Reduction:
    """How to reduce `dtype` by `op`. Raises TypeError where that has no meaning here."""
    # Options carry a ReduceOp around the enumeration's member, which is slow to hash and compare.
    kind: Any = getattr(op, "op", op)
    key = dtype, kind.value
    found = _known.get(key)
    if found is None:
        found = _known[key] = _reduction(dtype, str(kind).rpartition(".")[2])
    if found.name == "PREMUL_SUM":  # its factor is where only pickling looks
        return replace(found, factor=op.__getstate__()[1])  # type: ignore[index]
    return found


_known: dict[tuple[torch.dtype, int], Reduction] = {}


def _reduction(dtype: torch.dtype, name: str) -> Reduction:
    if name not in _OPS:
        raise TypeError(f"ReduceOp.{name} is not supported by the mpi backend.")
    fractional = dtype.is_floating_point or dtype.is_complex
    if name in ("BAND", "BOR", "BXOR") and fractional:
        raise TypeError(f"ReduceOp.{name} needs integers or bools, not {dtype}.")
    if name == "PREMUL_SUM" and not fractional:
        raise TypeError(f"ReduceOp.PREMUL_SUM needs floating point numbers, not {dtype}.")
    if dtype is torch.bool:
        if name not in _BOOL_OPS:
            raise TypeError(f"ReduceOp.{name} of bools has no meaning; convert to float first.")
        return Reduction(MPI.UINT8_T, _BOOL_OPS[name], None, False, name)
    if dtype.is_complex and name in ("MIN", "MAX"):
        raise TypeError(f"ReduceOp.{name} is not defined for complex numbers ({dtype}).")
    average = name == "AVG"
    if average and dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise TypeError(f"ReduceOp.AVG of {dtype}: torch cannot divide it; convert to int64 first.")
    if dtype in (torch.float16, torch.bfloat16):
        return Reduction(MPI.FLOAT, _OPS[name], torch.float32, average, name)
    if dtype not in _NUMBERS:
        raise TypeError(f"{dtype} can be sent but not reduced; convert to float32 first.")
    return Reduction(_NUMBERS[dtype], _OPS[name], None, average, name)
