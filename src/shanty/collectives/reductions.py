"""Reductions of every element type in MPI's terms. Importing this module starts MPI.

What MPI only moves, it moves as plain words of the element's size, so every dtype can travel.
What it reduces needs its true type. Half precision (float16, bfloat16) has none that works
everywhere (none for bfloat16 on any MPI, none for float16 on Open MPI 4.1): it is accumulated in
float32 and rounded once, at the end. A sum is therefore at least as exact as one that rounds at
every step. How it travels is in `operations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from shanty.collectives.kernels import Kernels, Tensor

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


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction of elements of one dtype.

    datatype, op: what MPI is told.
    carrier: the name of the dtype that the elements are converted to for it, None if MPI takes
        them as they are.
    average: whether the sum is divided by the number of ranks (before it is rounded back);
        towards zero for integers, as NCCL does.
    name: of the operation, as torch spells it.
    kernels: of the tensors.
    factor: what each rank's elements are multiplied with first (PREMUL_SUM).
    """

    datatype: MPI.Datatype
    op: MPI.Op
    carrier: str | None
    average: bool
    name: str
    kernels: Kernels
    factor: Any = None

    def fold(self, parts: Sequence[Tensor], total: Tensor) -> None:
        """`total` becomes the reduction of the parts in their order, in its dtype; not divided."""
        self.kernels.fold(self.name, parts, total)

    def divide(self, total: Tensor, ranks: int) -> None:
        """Turn a sum over `ranks` ranks into what was asked for, in place."""
        if self.average:
            self.kernels.divide([total], ranks)


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
