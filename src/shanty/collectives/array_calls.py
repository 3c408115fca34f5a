"""Horovod's operations on tensors, checked: requests that `submit` starts. Starts no MPI.

Tensors are NumPy arrays, by which front ends show the memory of theirs, or tensors of a framework
with the same attributes. They are only read, and must not change until the request ends. Where no
outputs are given, results are new arrays, which begin at a multiple of 64 bytes.
All raise ValueError or HorovodInternalError for what is wrong by itself (see `arguments`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from shanty.collectives import arguments, process_sets
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Kind, Op, Request, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = Any  # NumPy may be missing where the tensors are a framework's own


def submit(request: Request, process_set: ProcessSet) -> None:
    """Put a request into the queue of `process_set`.

    Raises ValueError where the process set is not registered or this rank is not in it, and
    HorovodInternalError before `init`, for a name that is in flight, or after a shutdown.
    """
    process_sets.negotiator(process_set).queue.put(request)


def allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    outputs: Sequence[Tensor] = (),
) -> Request:
    """Return the request for these tensors, combined over the ranks element by element."""
    for each in tensors:
        _check_reduced("allreduce", each, op)
    if op is Op.ADASUM:
        arguments.check_adasum(process_set)
    how: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    return Request(Kind.ALLREDUCE, name, tensors, _room(outputs, tensors), grouped=grouped, **how)


def allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, grouped: bool
) -> Request:
    """Return the request for the rows of all ranks of each tensor, in their order."""
    for each in tensors:
        arguments.check_rows("allgather", each.ndim)
    return Request(Kind.ALLGATHER, name, tensors, grouped=grouped)


def broadcast(
    tensors: Sequence[Tensor],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    outputs: Sequence[Tensor] = (),
) -> Request:
    """Return the request for the tensors of `root_rank`, a rank of the world."""
    root = arguments.root(root_rank, process_set)
    into, grouped = _room(outputs, tensors), len(tensors) > 1
    return Request(Kind.BROADCAST, name, tensors, into, root=root, grouped=grouped)


def alltoall(
    tensor: Tensor, splits: Sequence[int], name: str | None, process_set: ProcessSet
) -> Request:
    """Return the request for the rows that all ranks send to this one; `received_splits` says how
    many each did. splits: rows for each rank; none at all: as many to each.
    """
    arguments.check_rows("alltoall", tensor.ndim)
    counts = arguments.splits(splits, len(tensor), process_set)
    sent = tensor if counts is None else tensor[: sum(counts)]
    return Request(Kind.ALLTOALL, name, [sent], splits=counts)


def reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
) -> Request:
    """Return the request for this rank's rows of the tensors, reduced over all ranks.

    Where the rows cannot be shared out evenly, the first ranks get one more each.
    """
    arguments.check_scattered(op)
    for each in tensors:
        arguments.check_rows("reducescatter", each.ndim)
        _check_reduced("reducescatter", each, op)
    how: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    return Request(Kind.REDUCESCATTER, name, tensors, grouped=grouped, **how)


def join() -> Request:
    """Return the request of a rank without more data; its `value` is the rank that came last."""
    return Request(Kind.JOIN, None)


def done(request: Request, process_set: ProcessSet) -> Sequence[Array]:
    """Submit a request and wait for its results. Raises as `submit`, and what it ends with."""
    submit(request, process_set)
    return request.wait()


def _room(outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if outputs:
        return outputs
    from shanty.collectives.array_kernels import aligned  # starts MPI, as `init` has

    return [aligned(each.shape, each.dtype) for each in tensors]


def _check_reduced(call: str, tensor: Tensor, op: Op) -> None:
    if op not in _reduced(tensor.dtype):
        raise arguments.irreducible(call, _kind(tensor.dtype), op)


@cache
def _reduced(dtype: Any) -> frozenset[Op]:
    """Return the ways to combine elements of this type."""
    return arguments.REDUCED.get(_kind(dtype), frozenset())


def _kind(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]
