"""What each operation asks of the engine, checked first. Nothing here knows of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shanty.torch.hvd import handles, registry
from shanty.torch.hvd.handles import start
from shanty.torch.hvd.process_sets import ProcessSet
from shanty.torch.hvd.requests import Kind, Op, Request

_REALS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_REDUCED = {
    **dict.fromkeys(_REALS, frozenset(Op)),
    **dict.fromkeys(
        (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        frozenset(Op) - {Op.ADASUM},
    ),
    **dict.fromkeys(
        (torch.complex64, torch.complex128), frozenset({Op.SUM, Op.AVERAGE, Op.PRODUCT})
    ),
    **dict.fromkeys(
        (torch.uint16, torch.uint32, torch.uint64),
        frozenset({Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT}),
    ),
    torch.bool: frozenset({Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT}),
}
_NOTED = {dtype: ops - {Op.ADASUM} for dtype, ops in _REDUCED.items()}


def allreduce_in_place(
    tensor: Tensor,
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    """The handle of an allreduce of one tensor into itself."""
    if (
        name is not None
        and prescale == postscale == 1
        and op in _NOTED.get(tensor.dtype, ())
        and tensor.is_cpu
        and not tensor.requires_grad
        and tensor.layout is torch.strided
    ):  # as most are
        return handles.note(registry.engine(process_set).inbox.note(name, tensor, op))
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
    """The handle of an allreduce of these tensors into those, which may be the same ones."""
    graph = False
    for each in tensors:
        if op not in _REDUCED.get(each.dtype, ()) or each.layout is not torch.strided:
            raise _irreducible("allreduce", each, op)
        graph = graph or each.requires_grad
    if op is Op.ADASUM:
        _check_adasum(process_set)
    given = _plain(tensors) if graph else tensors
    request = Request(
        Kind.ALLREDUCE,
        name,
        given,
        given if outputs is tensors else outputs,
        op=op,
        prescale=prescale,
        postscale=postscale,
        grouped=grouped,
    )
    return start(request, process_set, handles.own_all if grouped else handles.own, outputs)


def allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, grouped: bool
) -> int:
    """The handle of an allgather: tensors with the rows of all ranks, in their order."""
    _check_rows("allgather", tensors)
    request = Request(Kind.ALLGATHER, name, _plain(tensors), grouped=grouped)
    return start(request, process_set, handles.made_all if grouped else handles.made)


def broadcast(
    tensor: Tensor, output: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    """The handle of a broadcast into `output`, which may be `tensor`. root_rank: in the world."""
    _check_dense("broadcast", tensor)
    ranks = _ranks(process_set)
    if root_rank not in ranks:
        raise ValueError(f"broadcast: there is no rank {root_rank} in {process_set} to send.")
    given = _plain((tensor,))
    request = Request(
        Kind.BROADCAST,
        name,
        given,
        given if output is tensor else (output,),
        root=ranks.index(root_rank),
    )
    return start(request, process_set, handles.own, (output,))


def alltoall(
    tensor: Tensor,
    splits: Sequence[int] | Tensor | None,
    name: str | None,
    process_set: ProcessSet,
) -> int:
    """The handle of an alltoall: the rows that are for this rank, and how many each rank sent."""
    _check_rows("alltoall", (tensor,))
    counts = _counts(tensor, splits, process_set)
    kind = (
        (splits.dtype, splits.device)
        if isinstance(splits, Tensor)
        else (torch.int32, torch.device("cpu"))
    )

    def form(request: Request, _: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        received = torch.tensor(request.received_splits, dtype=kind[0], device=kind[1])
        return request.results[0], received

    sent = tensor if counts is None else tensor.narrow(0, 0, sum(counts))
    request = Request(Kind.ALLTOALL, name, _plain((sent,)), splits=counts)
    return start(request, process_set, form)


def reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    grouped: bool,
) -> int:
    """The handle of a reducescatter: this rank's share of the rows, reduced over all ranks.

    Where the rows cannot be shared out evenly, the first ranks get one more each.
    """
    if op not in (Op.AVERAGE, Op.SUM):
        raise ValueError(f"reducescatter takes hvd.Average and hvd.Sum, not {op.name.title()}.")
    _check_rows("reducescatter", tensors)
    for each in tensors:
        if op not in _REDUCED.get(each.dtype, ()):
            raise _irreducible("reducescatter", each, op)
    request = Request(
        Kind.REDUCESCATTER,
        name,
        _plain(tensors),
        op=op,
        prescale=prescale,
        postscale=postscale,
        grouped=grouped,
    )
    return start(request, process_set, handles.made_all if grouped else handles.made)


def _ranks(process_set: ProcessSet) -> Sequence[int]:
    """The members of a process set that this rank can use; raises what `start` would."""
    registry.engine(process_set)
    return process_set.ranks or ()


# ---- checks ------------------------------------------------------------------------------------


def _plain(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same memory without a graph: writing to a parameter is no step of a computation."""
    for each in tensors:
        if each.requires_grad:
            return [tensor.detach() for tensor in tensors]
    return tensors


def _check_dense(call: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{call}: a tensor of layout {tensor.layout} cannot be sent as it is. "
            "hvd.sparse_allreduce_async reduces sparse ones; else use tensor.to_dense()."
        )


def _check_rows(call: str, tensors: Sequence[Tensor]) -> None:
    for each in tensors:
        _check_dense(call, each)
        if each.dim() == 0:
            raise ValueError(
                f"{call} works on rows: a tensor needs at least one dimension, and this one has "
                "none. Use tensor.reshape(1)."
            )


def _irreducible(call: str, tensor: Tensor, op: Op) -> Exception:
    if tensor.layout is not torch.strided:
        return ValueError(
            f"{call}: a tensor of layout {tensor.layout} cannot be reduced as it is. "
            "Use hvd.sparse_allreduce_async, or tensor.to_dense()."
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    return ValueError(f"{call}: hvd.{op.name.title()} of a tensor of type {kind} is not supported.")


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set.process_set_id != 0:
        raise NotImplementedError("Adasum works on hvd.global_process_set only.")
    world = registry.standing()
    if world is not None and world.place.size & (world.place.size - 1):
        raise NotImplementedError(
            f"Adasum needs 2, 4, 8, … ranks; here there are {world.place.size}."
        )


def _counts(
    tensor: Tensor, splits: Sequence[int] | Tensor | None, process_set: ProcessSet
) -> list[int] | None:
    """Rows for each rank; None for the same number for all."""
    if isinstance(splits, Tensor):
        if splits.dim() > 1 or splits.is_floating_point() or splits.is_complex():
            raise ValueError("alltoall: splits must be a list or a 1-D tensor of integers.")
        splits = splits.tolist() if splits.dim() else [int(splits)]
    counts = [] if splits is None else [int(each) for each in splits]
    rows, size = tensor.shape[0], len(_ranks(process_set))
    if not counts:
        if rows % size:
            raise ValueError(
                f"alltoall: {rows} rows cannot be shared out evenly among {size} ranks. "
                "Pass splits, the number of rows for each of them."
            )
        return None
    if len(counts) != size:
        raise ValueError(f"alltoall: splits has {len(counts)} numbers for {size} ranks.")
    if min(counts) < 0 or sum(counts) > rows:
        raise ValueError(
            f"alltoall: splits is {counts}, {sum(counts)} rows in all, but the tensor has {rows}; "
            "no number may be negative."
        )
    return counts
