"""The calls of Horovod's operations, checked, and their handles. Nothing knows of gradients.

A handle is a number by which a script knows what it has started and not yet waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shanty.collectives import arguments, array_calls, process_sets
from shanty.collectives.errors import ArgumentError
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Op, Request, TensorEntry

Form = Callable[[Request], Any]
"""Makes what `synchronize` returns of a request that succeeded."""

_under_way: dict[int, TensorEntry | tuple[Request, Sequence[Tensor], Form | None]] = {}
_numbers = itertools.count(1)

_NOTED = {getattr(torch, kind): ops - {Op.ADASUM} for kind, ops in arguments.REDUCED.items()}


def allreduce_in_place(
    tensor: Tensor,
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    """Return the handle of an allreduce of one tensor into itself."""
    if (
        name is not None
        and prescale == postscale == 1
        and op in _NOTED.get(tensor.dtype, ())
        and tensor.is_cpu
        and not tensor.requires_grad
        and tensor.layout is torch.strided
    ):  # as most are
        entry = process_sets.negotiator(process_set).queue.add(name, tensor, op)
        handle = next(_numbers)
        _under_way[handle] = entry
        return handle
    both = (tensor,)
    return allreduce(both, both, name, op, prescale, postscale, process_set, False)


def allreduce(
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
) -> int:
    """Return the handle of an allreduce of these tensors into those, which may be the same ones."""
    given = _plain("allreduce", tensors)
    into = given if outputs is tensors else outputs
    how = name, op, prescale, postscale, process_set, grouped
    return start(array_calls.allreduce(given, *how, outputs=into), process_set, outputs)


def allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, grouped: bool
) -> int:
    """Return the handle of an allgather: tensors with the rows of all ranks, in their order."""
    given = _plain("allgather", tensors)
    return start(array_calls.allgather(given, name, process_set, grouped), process_set)


def broadcast(
    tensor: Tensor, output: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    """Return the handle of a broadcast into `output` or itself. root_rank: in the world."""
    given = _plain("broadcast", (tensor,))
    into = given if output is tensor else (output,)
    request = array_calls.broadcast(given, root_rank, name, process_set, outputs=into)
    return start(request, process_set, (output,))


def alltoall(
    tensor: Tensor, splits: Sequence[int] | Tensor | None, name: str | None, process_set: ProcessSet
) -> int:
    """Return the handle of an alltoall: the rows for this rank, and how many each rank sent."""
    like = splits if isinstance(splits, Tensor) else torch.empty(0, dtype=torch.int32)

    def form(request: Request) -> tuple[Tensor, Tensor]:
        return request.results[0], like.new_tensor(request.received_splits)

    (given,) = _plain("alltoall", (tensor,))
    request = array_calls.alltoall(given, _row_counts(splits), name, process_set)
    return start(request, process_set, form=form)


def reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    grouped: bool,
) -> int:
    """Return the handle of a reducescatter: this rank's share of the rows, reduced over all ranks.

    Where the rows cannot be shared out evenly, the first ranks get one more each.
    """
    given = _plain("reducescatter", tensors)
    how = name, op, prescale, postscale, process_set, grouped
    return start(array_calls.reducescatter(given, *how), process_set)


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start to add up sparse tensors (layout `torch.sparse_coo`), which may fill other places on
    other ranks.

    op: Average or Sum. Returns a function: it waits and returns the result, a sparse tensor of
    the same shape. It is not coalesced, so one place may stand in it several times.
    Raises ValueError for another layout or op.
    """
    op = Op(op)
    if op not in (Op.AVERAGE, Op.SUM):
        raise ValueError(
            f"sparse_allreduce_async takes hvd.Average and hvd.Sum, not {op.name.title()}."
        )
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async needs a sparse COO tensor, not {tensor.layout}.")
    shape = tensor.shape
    places = tensor._indices().t().contiguous()
    parts = [
        allgather([part], name and f"{name}.{which}", process_set, False)
        for part, which in ((places, "indices"), (tensor._values(), "values"))
    ]

    def finish() -> Tensor:
        indices, values = map(synchronize, parts)
        if op is Op.AVERAGE:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False)

    return finish


# ---- handles -------------------------------------------------------------------------------------


def submit(request: Request, process_set: ProcessSet) -> None:
    """Put a request into the queue of `process_set`. Raises as `start`."""
    if request.tensors and request.tensors[0].is_cuda:
        request.ready = torch.cuda.current_stream().record_event()
    process_sets.negotiator(process_set).queue.put(request)


def start(
    request: Request,
    process_set: ProcessSet,
    outputs: Sequence[Tensor] = (),
    form: Form | None = None,
) -> int:
    """Submit a request to the negotiator of `process_set`; returns its handle.

    outputs: the script's own tensors, if the request fills them. form: where the result is neither
    a tensor nor a group of them.
    Raises ValueError where the process set is not registered or this rank is not in it, and
    HorovodInternalError before `init`, for a name that is in flight, or after a shutdown.
    """
    submit(request, process_set)
    handle = next(_numbers)
    _under_way[handle] = request, outputs, form
    return handle


def poll(handle: int) -> bool:
    """Return whether the operation has ended, so that `synchronize` would not block.

    Raises ValueError for a handle that was never given, or was synchronized already.
    """
    found = _under_way.get(handle)
    if found is None:
        raise ArgumentError(f"Unknown handle: {handle!r}. It may have been synchronized already.")
    request = found if isinstance(found, TensorEntry) else found[0]
    negotiator = request.negotiator
    if negotiator is not None and not request.done:
        negotiator.hurry()
    return request.done


def synchronize(handle: int) -> Any:
    """Wait until the operation has ended, and return its result.

    That is a tensor; a tuple of them for a grouped operation; for alltoall the tensor and how
    much of it came from each rank. None for a handle that was synchronized already.
    Raises HorovodInternalError where it failed.
    """
    found = _under_way.get(handle)
    if found is None:
        return None
    if isinstance(found, TensorEntry):
        outcome = found.outcome
        if outcome is None or not outcome.done or outcome.error is not None:
            _wait(handle, found)
        else:  # as for all but the first of those that are done together
            _under_way.pop(handle, None)
        return found.tensor
    request, outputs, form = found
    _wait(handle, request)
    if form is not None:
        return form(request)
    results = outputs or request.results
    return tuple(results) if request.grouped else results[0]


def _wait(handle: int, started: Request | TensorEntry) -> None:
    try:
        started.wait()
    finally:
        if started.done:
            _under_way.pop(handle, None)


def forget() -> None:
    """Forget the handles of an earlier `init`, and number new ones from 1."""
    global _numbers
    _under_way.clear()
    _numbers = itertools.count(1)


# ---- checks ------------------------------------------------------------------------------------


def _plain(call: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the same memory without a graph: to write to a parameter is not a computation."""
    graph = False
    for each in tensors:
        if each.layout is not torch.strided:
            raise ArgumentError(
                f"{call}: a tensor of layout {each.layout} cannot be sent as it is. "
                "hvd.sparse_allreduce_async reduces sparse ones; else use tensor.to_dense()."
            )
        graph = graph or each.requires_grad
    return [each.detach() for each in tensors] if graph else tensors


def _row_counts(splits: Sequence[int] | Tensor | None) -> list[int]:
    """Return the splits of an alltoall as numbers, none where there are none."""
    if isinstance(splits, Tensor):
        if splits.dim() > 1 or splits.is_floating_point() or splits.is_complex():
            raise ArgumentError("alltoall: splits must be a list or a 1-D tensor of integers.")
        splits = splits.tolist() if splits.dim() else [int(splits)]
    return [] if splits is None else [int(each) for each in splits]
