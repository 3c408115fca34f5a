"""The operations as steps of a computation, with the gradients that Horovod gives them.

The gradient of an allreduce is the same allreduce of the gradients. That of allgather and of
broadcast is their AVERAGE over the ranks, of which each takes its part: for a loss that is the
mean of all ranks' losses. That of a reducescatter gathers, times the number of ranks for a Sum.
An alltoall's sends everything back. All of them can be differentiated again.

What is given as a list comes back as a tuple. The steps of a name have the name NAME.gradient on
their way back, so that they find each other when the graphs of the ranks differ in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shanty.collectives.request import Op
from shanty.torch.hvd import calls
from shanty.torch.hvd.calls import synchronize

Tensors = tuple[Tensor, ...]
_Run = Callable[..., Tensors]


def _with_gradient(back: Callable[..., Iterable[Tensor]]) -> Callable[[_Run], _Run]:
    """Decorate what takes tensors, and how. back: takes the context and the results' gradients."""

    def decorate(run: _Run) -> _Run:
        @wraps(run)
        def call(tensors: Sequence[Tensor], *how: Any) -> Tensors:
            if not torch.is_grad_enabled() or not any(each.requires_grad for each in tensors):
                return run(tensors, *how)
            results: Tensors = _Step.apply(run, back, how, *tensors)  # type: ignore[no-untyped-call]
            return results

        return call

    return decorate


class _Step(Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, back: Any, how: tuple[Any, ...], *tensors: Tensor) -> Tensors:
        results = run(tensors, *how)  # refuses what has no rows
        ctx.back, ctx.how = back, how
        ctx.rows = [len(each) if each.dim() else 1 for each in tensors]
        if back is _alltoall_back:
            ctx.received = results[1].tolist()
            ctx.mark_non_differentiable(results[1])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, None, *ctx.back(ctx, gradients)


def _allreduce_back(ctx: Any, gradients: Tensors) -> Iterable[Tensor]:
    name, *rest = ctx.how
    return allreduce(gradients, _back(name), *rest)


@_with_gradient(_allreduce_back)
def allreduce(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Reduce each tensor over the ranks. how: what `calls.allreduce` takes after the tensors."""
    outputs = [each.new_empty(each.shape) for each in tensors]
    synchronize(calls.allreduce(tensors, outputs, *how))
    return tuple(outputs)


def _allgather_back(ctx: Any, gradients: Tensors) -> Iterable[Tensor]:
    name, process_set, grouped = ctx.how
    name = _back(name)
    averages = allreduce(gradients, name, Op.AVERAGE, 1.0, 1.0, process_set, grouped)
    rows = torch.tensor([ctx.rows])
    every: Tensor = synchronize(calls.allgather([rows], name, process_set, False))
    starts = every[: process_set.rank()].sum(0).tolist()
    parts = zip(averages, starts, ctx.rows, strict=True)
    # Copies, since a view would keep the rows of all ranks in memory.
    return [each.narrow(0, start, count).clone() for each, start, count in parts]


@_with_gradient(_allgather_back)
def allgather(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Gather the rows of all ranks of each tensor. how: as for `calls.allgather`."""
    gathered = synchronize(calls.allgather(tensors, *how))
    return gathered if how[-1] else (gathered,)


def _broadcast_back(ctx: Any, gradients: Tensors) -> Iterable[Tensor]:
    root_rank, name, process_set = ctx.how
    averages = allreduce(gradients, _back(name), Op.AVERAGE, 1.0, 1.0, process_set, False)
    is_root = process_set.ranks[process_set.rank()] == root_rank
    return averages if is_root else [torch.zeros_like(averages[0])]


@_with_gradient(_broadcast_back)
def broadcast(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Return the root's tensor, of one. how: as for `calls.broadcast`."""
    output = tensors[0].new_empty(tensors[0].shape)
    synchronize(calls.broadcast(tensors[0], output, *how))
    return (output,)


def _alltoall_back(ctx: Any, gradients: Tensors) -> Iterable[Tensor]:
    _, name, process_set = ctx.how
    back, _ = alltoall(gradients[:1], ctx.received, _back(name), process_set)
    unsent = ctx.rows[0] - back.shape[0]  # rows that the splits left out
    return [torch.cat([back, back.new_zeros((unsent, *back.shape[1:]))]) if unsent else back]


@_with_gradient(_alltoall_back)
def alltoall(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Return, of one tensor, the rows for this rank, and how many came from each.

    how: as for `calls.alltoall`.
    """
    results: Tensors = synchronize(calls.alltoall(tensors[0], *how))
    return results


def _reducescatter_back(ctx: Any, gradients: Tensors) -> Iterable[Tensor]:
    name, op, process_set, prescale, postscale, grouped = ctx.how
    factor = prescale * postscale * (process_set.size() if op is Op.SUM else 1)
    scaled = gradients if factor == 1 else [each * factor for each in gradients]
    return allgather(scaled, _back(name), process_set, grouped)


@_with_gradient(_reducescatter_back)
def reducescatter(tensors: Sequence[Tensor], *how: Any) -> Tensors:
    """Return this rank's rows of each reduced tensor. how: as for `calls.reducescatter`."""
    shares = synchronize(calls.reducescatter(tensors, *how))
    return shares if how[-1] else (shares,)


def _back(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"
