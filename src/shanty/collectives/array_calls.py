"""Horovod's operations on NumPy arrays, checked: requests that `submit` starts. Starts no MPI.

For front ends that show their tensors as arrays. Results are arrays of their own, which begin at
a multiple of 64 bytes; arguments are only read, and must stay as they are until the request ends.
All raise ValueError or HorovodInternalError for what is wrong by itself (see `arguments`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from shanty.collectives import arguments, process_sets
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Kind, Op, Request

Array = NDArray[Any]


def submit(request: Request, process_set: ProcessSet) -> None:
    """Put a request into the queue of `process_set`.

    Raises ValueError where the process set is not registered or this rank is not in it, and
    HorovodInternalError before `init`, for a name that is in flight, or after a shutdown.
    """
    process_sets.controller(process_set).queue.put(request)


def allreduce(
    arrays: Sequence[Array],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
) -> Request:
    """Return the request for these arrays, combined over the ranks element by element."""
    from shanty.collectives.array_kernels import aligned  # starts MPI, as `init` has

    for each in arrays:
        _check_reduced("allreduce", each, op)
    if op is Op.ADASUM:
        arguments.check_adasum(process_set)
    outputs = [aligned(each.shape, each.dtype) for each in arrays]
    how: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    return Request(Kind.ALLREDUCE, name, arrays, outputs, grouped=grouped, **how)


def allgather(
    arrays: Sequence[Array], name: str | None, process_set: ProcessSet, grouped: bool
) -> Request:
    """Return the request for the rows of all ranks of each array, in their order."""
    for each in arrays:
        arguments.check_rows("allgather", each.ndim)
    return Request(Kind.ALLGATHER, name, arrays, grouped=grouped)


def broadcast(
    arrays: Sequence[Array], root_rank: int, name: str | None, process_set: ProcessSet
) -> Request:
    """Return the request for the arrays of `root_rank`, a rank of the world."""
    from shanty.collectives.array_kernels import aligned

    root = arguments.root(root_rank, process_set)
    outputs = [aligned(each.shape, each.dtype) for each in arrays]
    return Request(Kind.BROADCAST, name, arrays, outputs, root=root, grouped=len(arrays) > 1)


def alltoall(
    array: Array, splits: Sequence[int], name: str | None, process_set: ProcessSet
) -> Request:
    """Return the request for the rows that all ranks send to this one; `received_splits` says how
    many each did. splits: rows for each rank; none at all: as many to each.
    """
    arguments.check_rows("alltoall", array.ndim)
    counts = arguments.splits(splits, len(array), process_set)
    sent = array if counts is None else array[: sum(counts)]
    return Request(Kind.ALLTOALL, name, [sent], splits=counts)


def reducescatter(
    arrays: Sequence[Array],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
) -> Request:
    """Return the request for this rank's rows of the arrays, reduced over all ranks.

    Where the rows cannot be shared out evenly, the first ranks get one more each.
    """
    arguments.check_scattered(op)
    for each in arrays:
        arguments.check_rows("reducescatter", each.ndim)
        _check_reduced("reducescatter", each, op)
    how: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    return Request(Kind.REDUCESCATTER, name, arrays, grouped=grouped, **how)


def join() -> Request:
    """Return the request that says that this rank has no more data; `value`: who came last."""
    return Request(Kind.JOIN, None)


def done(request: Request, process_set: ProcessSet) -> Sequence[Array]:
    """Submit a request and wait for its results. Raises as `submit`, and what it ends with."""
    submit(request, process_set)
    return request.wait()


def _check_reduced(call: str, array: Array, op: Op) -> None:
    kind = array.dtype.name
    if op not in arguments.REDUCED.get(kind, ()):
        raise arguments.irreducible(call, kind, op)
