"""Horovod's operations on tensors, under its names and with its arguments.

Those that end in `_async` return at once, with a handle for `synchronize` and `poll`; those that
end in `_` write their result to the tensors they are given; `grouped_` ones take a list, which is
done as a whole. A `name` brings together what belongs together on all ranks, in whatever order
they ask for it; unnamed calls are matched by their order. Sizes, types and what else there is to
agree on are compared first: HorovodInternalError, on all ranks, where they differ. The process
set says which ranks take part; a rank that is named (`root_rank`) is always one of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from torch import Tensor

from shanty.collectives.arguments import op_of
from shanty.collectives.compression import compressed
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Kind, Op, Request
from shanty.torch.hvd import autograd, calls
from shanty.torch.hvd.calls import poll as poll
from shanty.torch.hvd.calls import sparse_allreduce_async as sparse_allreduce_async
from shanty.torch.hvd.calls import start
from shanty.torch.hvd.calls import synchronize as synchronize
from shanty.torch.hvd.compression import Compression, Compressor

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"]
__all__ += ["grouped_allreduce", "grouped_allreduce_"]
__all__ += ["grouped_allreduce_async", "grouped_allreduce_async_", "sparse_allreduce_async"]
__all__ += ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]
__all__ += ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["alltoall", "alltoall_async"]
__all__ += ["reducescatter", "reducescatter_async"]
__all__ += ["grouped_reducescatter", "grouped_reducescatter_async"]
__all__ += ["barrier", "join", "poll", "synchronize"]

Average, Sum, Adasum = Op.AVERAGE, Op.SUM, Op.ADASUM
Min, Max, Product = Op.MIN, Op.MAX, Op.PRODUCT

Splits = Sequence[int] | Tensor | None
P = ParamSpec("P")

_joins = 0  # that have ended


def _waited_for(begin: Callable[P, int], doc: str) -> Callable[P, Any]:
    """Return the call of the same arguments that waits for what `begin` starts, and returns it."""

    @wraps(begin)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        return synchronize(begin(*args, **kwargs))

    call.__name__ = call.__qualname__ = begin.__name__.replace("_async_", "_")
    call.__doc__ = doc
    return call


# ---- allreduce ---------------------------------------------------------------------------------


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """A new tensor: `tensor` combined over the ranks, element by element. Has a gradient.

    op: Average (the default), Sum, Min, Max, Product or Adasum. An Average of integers is
    rounded towards zero. average: true or false for Average or Sum; use `op`.
    compression: how the tensor travels. prescale_factor, postscale_factor: what the elements are
    multiplied with before and after.
    Raises ValueError for an op that the type has not, or a process set without this rank.
    """
    how = name, op_of(op, average), prescale_factor, postscale_factor, process_set, False
    return compressed(autograd.allreduce, compression, (tensor,), *how)[0]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allreduce`, without compression and gradient; a handle to its result."""
    how = op_of(op, average), prescale_factor, postscale_factor, process_set, False
    return calls.allreduce((tensor,), (tensor.new_empty(tensor.shape),), name, *how)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allreduce_`; a handle to its result. Leave the tensor alone until then."""
    return calls.allreduce_in_place(
        tensor, name, op_of(op, average), prescale_factor, postscale_factor, process_set
    )


allreduce_ = _waited_for(
    allreduce_async_, "`tensor` itself, changed to what `allreduce` would return. Has no gradient."
)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """New tensors: an `allreduce` of each, all of them together. They have gradients."""
    how = name, op_of(op, average), prescale_factor, postscale_factor, process_set, True
    return compressed(autograd.allreduce, compression, _group(tensors), *how)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allreduce`, without compression and gradients; one handle to all."""
    group = _group(tensors)
    outputs = [each.new_empty(each.shape) for each in group]
    how = op_of(op, average), prescale_factor, postscale_factor, process_set, True
    return calls.allreduce(group, outputs, name, *how)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allreduce_`; one handle to all. Leave the tensors alone until then."""
    group = _group(tensors)
    how = op_of(op, average), prescale_factor, postscale_factor, process_set, True
    return calls.allreduce(group, group, name, *how)


grouped_allreduce_ = _waited_for(
    grouped_allreduce_async_,
    "The tensors themselves, changed to what `grouped_allreduce` would return.",
)


# ---- allgather ---------------------------------------------------------------------------------


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """A new tensor: the rows (dimension 0) of all ranks, in the order of ranks. Has a gradient.

    The ranks may have different numbers of rows, and none.
    """
    return autograd.allgather((tensor,), name, process_set, False)[0]


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an `allgather`, without gradient; a handle to its result."""
    return calls.allgather((tensor,), name, process_set, False)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """New tensors: an `allgather` of each, all of them together. They have gradients."""
    return autograd.allgather(_group(tensors), name, process_set, True)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a `grouped_allgather`, without gradients; one handle to all."""
    return calls.allgather(_group(tensors), name, process_set, True)


# ---- broadcast ---------------------------------------------------------------------------------


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """A new tensor: that of the rank `root_rank`. Has a gradient.

    Raises ValueError where that rank is not in the process set.
    """
    return autograd.broadcast((tensor,), root_rank, name, process_set)[0]


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `broadcast`, without gradient; a handle to its result."""
    return calls.broadcast(tensor, tensor.new_empty(tensor.shape), root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `broadcast_`; a handle to its result. Leave the tensor alone until then."""
    return calls.broadcast(tensor, tensor, root_rank, name, process_set)


broadcast_ = _waited_for(
    broadcast_async_, "`tensor` itself, changed to that of the rank `root_rank`. Has no gradient."
)


# ---- alltoall ----------------------------------------------------------------------------------


def alltoall(
    tensor: Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """A new tensor: the rows (dimension 0) that all ranks have sent to this one, in their order.

    splits: how many rows go to each rank; a list, or a tensor of integers. None: as many to each.
    With splits the result is a pair: the tensor, and how many rows came from each rank. The
    tensor has a gradient.
    Raises ValueError for splits that the rows do not suffice for.
    """
    output, received = autograd.alltoall((tensor,), splits, name, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `alltoall`, without gradient; a handle to the pair, also without splits."""
    return calls.alltoall(tensor, splits, name, process_set)


# ---- reducescatter -----------------------------------------------------------------------------


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """A new tensor: this rank's rows of what `allreduce` would return. Has a gradient.

    Rows are shared out evenly; what is left over goes to the first ranks, one row each.
    op: Average or Sum; ValueError for another one, for Adasum a NotImplementedError.
    """
    how = name, Op(op), process_set, prescale_factor, postscale_factor, False
    return compressed(autograd.reducescatter, compression, (tensor,), *how)[0]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a `reducescatter`, without compression and gradient; a handle to its result."""
    how = Op(op), process_set, prescale_factor, postscale_factor
    return calls.reducescatter((tensor,), name, *how, False)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """New tensors: a `reducescatter` of each, all of them together. They have gradients."""
    how = name, Op(op), process_set, prescale_factor, postscale_factor, True
    return compressed(autograd.reducescatter, compression, _group(tensors), *how)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a `grouped_reducescatter`, without compression and gradients; one handle to all."""
    how = Op(op), process_set, prescale_factor, postscale_factor
    return calls.reducescatter(_group(tensors), name, *how, True)


# ---- join and barrier --------------------------------------------------------------------------


def join(device: int = -1) -> int:
    """Announce that this rank has no more data, and wait until all ranks have done so.

    Until then it takes part in allreduces of the others, with zeros. Any other call of theirs
    raises HorovodInternalError. With SHANTY_JOIN_ALL=1 it takes part in those too, with no rows in
    allgather and alltoall; a broadcast from it fails. device: has no effect.
    Returns the rank that joined last.
    """
    global _joins
    request = Request(Kind.JOIN, None)
    last: int = synchronize(start(request, global_process_set, form=lambda ended: ended.value))
    _joins += 1
    return last


def joins() -> int:
    """Return how often all ranks have joined, the same number on all of them."""
    return _joins


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called it."""
    synchronize(start(Request(Kind.BARRIER, None), process_set, form=lambda _: None))


# ---- within ------------------------------------------------------------------------------------


def _group(tensors: Sequence[Tensor]) -> list[Tensor]:
    group = list(tensors)
    if not group:
        raise ValueError("A grouped operation needs at least one tensor.")
    return group
