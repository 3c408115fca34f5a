"""Gradients of every operation: what Horovod 0.28.1 gives them, in float64. See hvd_ops.

Each rank's loss is the sum of its result times weights of its own, so the gradients that come
back are those weights.
"""

from __future__ import annotations

import torch
from hvd_reference import adasum, close, given, reduced
from torch import Tensor

import shanty.torch as hvd


def weights(shape: torch.Size | tuple[int, ...], seed: int = 50) -> list[Tensor]:
    return given(tuple(shape), torch.float64, seed)


def own(tensors: list[Tensor]) -> Tensor:
    return tensors[hvd.rank()].clone().requires_grad_()


def check_gradient_of_allreduce() -> None:
    """The same reduction of the gradients, with the same factors."""
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        for shape in ((), (4,), (2, 3)):
            x, w = own(given(shape, torch.float64)), weights(shape)
            found = hvd.allreduce(x, op=op, name="grad", prescale_factor=0.5, postscale_factor=4.0)
            assert found.requires_grad
            (found * w[hvd.rank()]).sum().backward()
            close(x.grad, reduced(w, op, 0.5, 4.0), op.name)


def check_gradient_of_grouped_allreduce() -> None:
    lots = [given((n + 1,), torch.float64, seed=n) for n in range(3)]
    xs = [own(each) for each in lots]
    xs[1] = xs[1].detach()  # one that needs no gradient
    found = hvd.grouped_allreduce(xs, op=hvd.Average, postscale_factor=2.0)
    w = [weights((n + 1,), 60 + n) for n in range(3)]
    sum((each * by[hvd.rank()]).sum() for each, by in zip(found, w, strict=True)).backward()
    close(xs[0].grad, reduced(w[0], hvd.Average, 1.0, 2.0))
    close(xs[2].grad, reduced(w[2], hvd.Average, 1.0, 2.0))
    assert xs[1].grad is None
    xs = [own(each) for each in lots]
    hvd.grouped_allreduce(xs, op=hvd.Sum)[0].sum().backward()  # the others' gradients are zero
    close(xs[0].grad, torch.full((1,), float(hvd.size()), dtype=torch.float64))
    close(xs[2].grad, torch.zeros(3, dtype=torch.float64))


def check_gradient_of_compression() -> None:
    x = own([each.float() for each in given((5,))])
    w = weights((5,))
    found = hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum)
    (found * w[hvd.rank()]).sum().backward()
    assert x.grad.dtype == torch.float32
    close(x.grad.half(), reduced(w, hvd.Sum))


def check_gradient_of_allgather() -> None:
    """This rank's rows of the average of the gradients."""
    size, rank = hvd.size(), hvd.rank()
    for rows in (
        [2] * size,
        [each + 1 for each in range(size)],
        [each % 2 for each in range(size)],
    ):
        x = torch.ones(rows[rank], 3, dtype=torch.float64, requires_grad=True)
        w = weights((sum(rows), 3))
        (hvd.allgather(x, name="grad") * w[rank]).sum().backward()
        close(x.grad, torch.split(reduced(w, hvd.Average), rows)[rank], rows)
        xs = [own(given((rows[rank],), torch.float64, seed)) for seed in (1, 2)]
        both = hvd.grouped_allgather(xs)
        w = weights((sum(rows),))
        (both[0] * w[rank] + 2 * both[1] * w[rank]).sum().backward()
        expected = torch.split(reduced(w, hvd.Average), rows)[rank]
        close(xs[0].grad, expected)
        close(xs[1].grad, 2 * expected)


def check_gradient_of_broadcast() -> None:
    """The average of the gradients at the root, zeros elsewhere."""
    for root in range(hvd.size()):
        x, w = own(given((3,), torch.float64)), weights((3,))
        (hvd.broadcast(x, root, name="grad") * w[hvd.rank()]).sum().backward()
        average = reduced(w, hvd.Average)
        close(x.grad, average if hvd.rank() == root else torch.zeros_like(average))


def check_gradient_of_alltoall() -> None:
    """Every gradient goes back to where its row came from; rows that stayed get zeros."""
    size, rank = hvd.size(), hvd.rank()
    splits = [[(2 * s + r) % 3 for r in range(size)] for s in range(size)]
    for spare in (0, 2):
        x = torch.ones(sum(splits[rank]) + spare, 2, dtype=torch.float64, requires_grad=True)
        found, received = hvd.alltoall(x, splits[rank], name="grad")
        assert not received.requires_grad
        (found * (rank + 1)).sum().backward()
        expected = [float(r + 1) for r in range(size) for _ in range(splits[rank][r])]
        column = torch.tensor(expected + [0.0] * spare, dtype=torch.float64)
        close(x.grad, column[:, None].expand(-1, 2))
    x = torch.ones(size, dtype=torch.float64, requires_grad=True)
    (hvd.alltoall(x) * (rank + 1)).sum().backward()
    close(x.grad, torch.arange(1.0, size + 1, dtype=torch.float64))


def check_gradient_of_reducescatter() -> None:
    """The gradients of all ranks end to end; for a Sum times the number of ranks."""
    size, rank = hvd.size(), hvd.rank()
    rows = 2 * size + 1
    share = [rows // size + (each < rows % size) for each in range(size)]
    for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
        w = [given((share[each], 2), torch.float64, each, ranks=1)[0] for each in range(size)]
        x = own(given((rows, 2), torch.float64))
        how = {"prescale_factor": 0.5, "postscale_factor": 3.0}
        (hvd.reducescatter(x, op=op, name="grad", **how) * w[rank]).sum().backward()
        close(x.grad, torch.cat(w) * factor * 1.5, op.name)
        xs = [own(given((rows, 2), torch.float64, seed)) for seed in (1, 2)]
        one, two = hvd.grouped_reducescatter(xs, op=op)
        ((one + 3 * two) * w[rank]).sum().backward()
        close(xs[0].grad, torch.cat(w) * factor)
        close(xs[1].grad, torch.cat(w) * factor * 3)


def check_twice() -> None:
    """Gradients of gradients, and of what is built on results."""
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = hvd.allreduce(x**3, op=hvd.Sum, name="twice")
    (first,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    n = hvd.size()
    close(first.detach(), 6 * n**2 * x.detach() ** 5)  # (n x³)², summed over the n ranks' losses
    (second,) = torch.autograd.grad(first.sum(), x)
    close(second, 30 * n**2 * x.detach() ** 4)
    z = hvd.allgather(x * 2, name="changed")
    z.mul_(3)  # what comes out belongs to the caller
    z.sum().backward()
    close(x.grad, torch.full((2,), 6.0, dtype=torch.float64))


def check_model() -> None:
    """A step in the middle of a model: the same numbers as one process with all the data."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    data = given((6, 4), seed=70)
    loss = model(hvd.allgather(data[hvd.rank()])).square().mean()
    loss.backward()
    found = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    model(torch.cat(data)).square().mean().backward()
    for one, other in zip(found, model.parameters(), strict=True):
        close(one, other.grad)


def check_no_graph_without_need() -> None:
    x = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
        assert not hvd.allgather(x).requires_grad
    assert not hvd.allreduce(torch.ones(2)).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(x)).requires_grad
    assert not hvd.synchronize(hvd.broadcast_async(x, 0)).requires_grad
    with torch.inference_mode():
        inside = torch.full((3,), float(hvd.rank()))
        hvd.allreduce_(inside, op=hvd.Sum)
        hvd.broadcast_(inside, 0)
        hvd.allgather(inside)
    close(inside, torch.full((3,), float(sum(range(hvd.size())))))


def check_adasum_of_gradients() -> None:
    x, w = own(given((5,), torch.float64)), weights((5,))
    (hvd.allreduce(x, op=hvd.Adasum) * w[hvd.rank()]).sum().backward()
    close(x.grad, adasum(w))


CHECKS = [
    check_gradient_of_allreduce,
    check_gradient_of_grouped_allreduce,
    check_gradient_of_compression,
    check_gradient_of_allgather,
    check_gradient_of_broadcast,
    check_gradient_of_alltoall,
    check_gradient_of_reducescatter,
    check_twice,
    check_model,
    check_no_graph_without_need,
    check_adasum_of_gradients,
]
