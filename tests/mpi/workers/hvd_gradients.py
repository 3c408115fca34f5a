"""What PyTorch alone has of gradients: of gradients, of models, and where there are none."""

from __future__ import annotations

import torch
from references import close, given

import shanty.torch as hvd


def check_tensors_that_need_no_gradient() -> None:
    with_gradient, without = torch.ones(2, requires_grad=True), torch.ones(3)
    found = hvd.grouped_allreduce([with_gradient, without], op=hvd.Sum)
    assert found[0].requires_grad
    (found[0].sum() + found[1].sum()).backward()
    close(with_gradient.grad, torch.full((2,), float(hvd.size())))
    assert without.grad is None
    _, received = hvd.alltoall(torch.ones(hvd.size(), requires_grad=True), [1] * hvd.size())
    assert not received.requires_grad


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
