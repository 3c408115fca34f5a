"""Checks of the arguments of Horovod's operations, before anything is sent. Starts no MPI.

Types are named as in `kernels`: "float32".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from shanty.collectives import process_sets
from shanty.collectives.errors import ArgumentError, UnsupportedError
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Op

_REALS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
_UNDIVIDED = ("uint16", "uint32", "uint64", "bool")
_COMPLEX = ("complex64", "complex128")

REDUCED: dict[str, frozenset[Op]] = {
    **dict.fromkeys(_REALS, frozenset(Op)),
    **dict.fromkeys(_INTEGERS, frozenset(Op) - {Op.ADASUM}),
    **dict.fromkeys(_UNDIVIDED, frozenset(Op) - {Op.ADASUM, Op.AVERAGE}),
    **dict.fromkeys(_COMPLEX, frozenset({Op.SUM, Op.AVERAGE, Op.PRODUCT})),
}
"""The ways to combine elements of each type."""


def op_of(op: int | None, average: bool | None) -> Op:
    """Return the operation that the two arguments name; ValueError when both are given."""
    if average is None:
        return Op.AVERAGE if op is None else op if type(op) is Op else Op(op)
    if op is not None:
        raise ValueError("op= and average= were both given: pass op= alone.")
    kind = "Average" if average else "Sum"
    warnings.warn(f"average= is deprecated: use op=hvd.{kind}.", DeprecationWarning, stacklevel=3)
    return Op.AVERAGE if average else Op.SUM


def ranks(process_set: ProcessSet) -> Sequence[int]:
    """Return the members of a process set that this rank can use; raises as `negotiator`."""
    process_sets.negotiator(process_set)
    return process_set.ranks or ()


def irreducible(call: str, kind: str, op: Op) -> ArgumentError:
    """Return the error for an `op` that the type `kind` does not support."""
    return ArgumentError(
        f"{call}: hvd.{op.name.title()} of a tensor of type {kind} is not supported."
    )


def check_scattered(op: Op) -> None:
    """Raise ArgumentError for an `op` that a reducescatter does not support."""
    if op not in (Op.AVERAGE, Op.SUM):
        kind = UnsupportedError if op is Op.ADASUM else ArgumentError
        raise kind(f"reducescatter takes hvd.Average and hvd.Sum, not {op.name.title()}.")


def check_rows(call: str, dimensions: int) -> None:
    """Raise ArgumentError for a tensor of no dimensions, which has no rows."""
    if dimensions == 0:
        raise ArgumentError(
            f"{call} works on rows: a tensor needs at least one dimension, and this one has "
            "none. Use tensor.reshape(1)."
        )


def check_adasum(process_set: ProcessSet) -> None:
    """Raise NotImplementedError where Adasum is not available."""
    if process_set.process_set_id != 0:
        raise NotImplementedError("Adasum works on hvd.global_process_set only.")
    world = process_sets.standing
    if world is not None and world.topology.size & (world.topology.size - 1):
        raise NotImplementedError(
            f"Adasum needs 2, 4, 8, … ranks; here there are {world.topology.size}."
        )


def root(root_rank: int, process_set: ProcessSet) -> int:
    """Return the rank within the process set of one of the world; ArgumentError: not in it."""
    members = ranks(process_set)
    if root_rank not in members:
        raise ArgumentError(f"broadcast: rank {root_rank}, the root, is not in {process_set}.")
    return members.index(root_rank)


def splits(counts: Sequence[int], rows: int, process_set: ProcessSet) -> list[int] | None:
    """Return the rows for each rank of an alltoall; None for the same number for all.

    counts: as the script passes them; an empty list means the same number for all. Raises
    ArgumentError.
    """
    size = len(ranks(process_set))
    if not counts:
        if rows % size:
            raise ArgumentError(
                f"alltoall: {rows} rows cannot be shared out evenly among {size} ranks. "
                "Pass splits, the number of rows for each of them."
            )
        return None
    if len(counts) != size:
        raise ArgumentError(f"alltoall: splits has {len(counts)} numbers for {size} ranks.")
    if min(counts) < 0 or sum(counts) > rows:
        raise ArgumentError(
            f"alltoall: splits is {list(counts)}, {sum(counts)} rows in all, but the tensor has "
            f"{rows}; no number may be negative."
        )
    return list(counts)
