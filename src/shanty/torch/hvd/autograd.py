"""The operations as steps of a computation, with the gradients that Horovod gives them.

The gradient of an allreduce is the same allreduce of the gradients. That of allgather and of
broadcast is their AVERAGE over the ranks, of which each takes its part: for a loss that is the
mean of all ranks' losses. That of a reducescatter gathers, times the number of ranks for a Sum.
An alltoall's sends everything back. All of them can be differentiated again.

What is given as a list comes back as a tuple. The steps of a name have the name NAME.gradient on
their way back, so that they find each other when the graphs of the ranks differ in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shanty.collectives.request import Op
from shanty.torch.hvd import calls
from shanty.torch.hvd.calls import synchronize

Tensors = tuple[Tensor, ...]


def allreduce(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Reduce each tensor over the ranks. how: what `calls.allreduce` takes after the tensors."""
    return _apply(_Allreduce, how, tensors)


def allgather(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Gather the rows of all ranks of each tensor. how: as for `calls.allgather`."""
    return _apply(_Allgather, how, tensors)


def broadcast(tensor: Tensor, *how: Any) -> Tensor:
    """Return the root's tensor. how: as for `calls.broadcast`."""
    return _apply(_Broadcast, how, (tensor,))[0]


def alltoall(tensor: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Return the rows for this rank, and how many came from each. how: as for `calls.alltoall`."""
    output, received = _apply(_Alltoall, how, (tensor,))
    return output, received


def reducescatter(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Return this rank's rows of each reduced tensor. how: as for `calls.reducescatter`."""
    return _apply(_Reducescatter, how, tensors)


class _Step(Function):
    """A step: `run` does it; `forward` also keeps what the way back needs."""

    @staticmethod
    def run(how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
        """The results, without a graph."""
        raise NotImplementedError


def _apply(step: type[_Step], how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        results: Tensors = step.apply(how, *tensors)  # type: ignore[no-untyped-call]
        return results
    return step.run(how, tensors)


class _Allreduce(_Step):
    @staticmethod
    def run(how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
        outputs = [each.new_empty(each.shape) for each in tensors]
        synchronize(calls.allreduce(tensors, outputs, *how))
        return tuple(outputs)

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *tensors: Tensor) -> Tensors:
        ctx.how = how
        return _Allreduce.run(how, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name, *rest = ctx.how
        return None, *_apply(_Allreduce, (_back(name), *rest), gradients)


class _Allgather(_Step):
    @staticmethod
    def run(how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
        gathered = synchronize(calls.allgather(tensors, *how))
        return gathered if how[-1] else (gathered,)

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *tensors: Tensor) -> Tensors:
        results = _Allgather.run(how, tensors)  # refuses what has no rows
        ctx.how = how
        ctx.rows = [each.shape[0] for each in tensors]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name, process_set, grouped = ctx.how
        name = _back(name)
        averages = allreduce(gradients, name, Op.AVERAGE, 1.0, 1.0, process_set, grouped)
        rows = torch.tensor([ctx.rows])
        every: Tensor = synchronize(calls.allgather([rows], name, process_set, False))
        starts = every[: process_set.rank()].sum(0).tolist()
        parts = zip(averages, starts, ctx.rows, strict=True)
        # Copies, since a view would keep the rows of all ranks in memory.
        return None, *(each.narrow(0, start, count).clone() for each, start, count in parts)


class _Broadcast(_Step):
    @staticmethod
    def run(how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
        output = tensors[0].new_empty(tensors[0].shape)
        synchronize(calls.broadcast(tensors[0], output, *how))
        return (output,)

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *tensors: Tensor) -> Tensors:
        ctx.how = how
        return _Broadcast.run(how, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        root_rank, name, process_set = ctx.how
        how = _back(name), Op.AVERAGE, 1.0, 1.0, process_set, False
        average = allreduce(gradients, *how)[0]
        is_root = process_set.ranks[process_set.rank()] == root_rank
        return None, average if is_root else torch.zeros_like(average)


class _Alltoall(_Step):
    @staticmethod
    def run(how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
        results: Tensors = synchronize(calls.alltoall(tensors[0], *how))
        return results

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *tensors: Tensor) -> Tensors:
        output, received = _Alltoall.run(how, tensors)
        ctx.how = how
        ctx.rows = tensors[0].shape[0]
        ctx.received = received.tolist()
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        _, name, process_set = ctx.how
        back, _ = alltoall(gradients[0], ctx.received, _back(name), process_set)
        unsent = ctx.rows - back.shape[0]  # rows that the splits left out
        if unsent:
            back = torch.cat([back, back.new_zeros((unsent, *back.shape[1:]))])
        return None, back


class _Reducescatter(_Step):
    @staticmethod
    def run(how: tuple[Any, ...], tensors: Sequence[Tensor]) -> Tensors:
        shares = synchronize(calls.reducescatter(tensors, *how))
        return shares if how[-1] else (shares,)

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *tensors: Tensor) -> Tensors:
        ctx.how = how
        return _Reducescatter.run(how, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name, op, process_set, prescale, postscale, grouped = ctx.how
        factor = prescale * postscale * (process_set.size() if op is Op.SUM else 1)
        scaled = gradients if factor == 1 else [each * factor for each in gradients]
        return None, *allgather(scaled, _back(name), process_set, grouped)


def _back(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"
