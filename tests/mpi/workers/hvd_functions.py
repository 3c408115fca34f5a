"""Broadcasts of models and of optimizers. See run_checks.py."""

from __future__ import annotations

import copy
import inspect

import torch
import torch._dynamo  # the first step of any optimizer would import it, and that takes its time
from checks import raised
from references import close
from torch import nn

import shanty.torch as hvd

OPTIMIZERS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if inspect.isclass(each)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))


def check_broadcast_of_models() -> None:
    for form in ("state_dict", "named_parameters", "parameters", "list", "pairs"):
        mine, theirs = model(hvd.rank()), model(hvd.size() - 1)
        params = {
            "state_dict": mine.state_dict,
            "named_parameters": mine.named_parameters,
            "parameters": mine.parameters,
            "list": lambda: list(mine.parameters()),  # noqa: B023 (used in this turn)
            "pairs": lambda: list(mine.named_parameters()),  # noqa: B023
        }[form]()
        hvd.broadcast_parameters(params, root_rank=hvd.size() - 1)
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(one, other), form
    raised(ValueError, lambda: hvd.broadcast_parameters(3, 0))
    raised(ValueError, lambda: hvd.broadcast_parameters({"a": "b"}, 0))
    raised(ValueError, lambda: hvd.broadcast_parameters(nn.LazyLinear(2).state_dict(), 0))
    hvd.broadcast_parameters([], 0)


def trained(kind: str, steps: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer of that kind after some steps."""
    torch.manual_seed(seed)
    options = {"lr": 0.01 * (1 + seed)}
    if kind == "SparseAdam":
        net: nn.Module = nn.Embedding(5, 3, sparse=True)
        inputs = torch.tensor([0, seed % 5])
    else:  # of matrices only, which is what Muon takes
        net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False))
        inputs = torch.randn(5, 4)
    if kind in ("SGD", "RMSprop"):
        options["momentum"] = 0.9
    optimizer = getattr(torch.optim, kind)(net.parameters(), **options)
    for _ in range(steps):
        optimizer.zero_grad()
        net(inputs).square().sum().backward()
        optimizer.step()
    return net, optimizer


def equal(one: object, other: object) -> None:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor) and one.dtype == other.dtype
        assert torch.equal(one, other), (one, other)
    elif isinstance(one, dict):
        assert set(one) == set(other), (one, other)
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            equal(left, right)
    else:
        assert one == other, (one, other)


def check_optimizers() -> None:
    """Every optimizer of torch.optim, with and without state on the other ranks, or on the root."""
    assert {"Adam", "AdamW", "SGD", "SparseAdam", "LBFGS", "RMSprop"} <= set(OPTIMIZERS)
    root = hvd.size() - 1
    for kind in OPTIMIZERS:
        if kind == "LBFGS":
            net, optimizer = trained("SGD", 0, 0)
            optimizer = torch.optim.LBFGS(net.parameters())
            raised(ValueError, lambda o=optimizer: hvd.broadcast_optimizer_state(o, root), "LBFGS")
            continue
        ways = [(0, 3), (2, 0)] if kind != "Adam" else [(0, 3), (2, 3), (2, 0), (0, 0)]
        for here, there in ways:
            is_root = hvd.rank() == root
            net, optimizer = trained(kind, there if is_root else here, 1 if is_root else 2)
            _, expected = trained(kind, there, 1)
            before = copy.deepcopy(list(net.parameters()))
            hvd.broadcast_parameters(net.state_dict(), root)
            hvd.broadcast_optimizer_state(optimizer, root, net)
            equal(optimizer.state_dict(), expected.state_dict())
            if is_root:
                for one, other in zip(net.parameters(), before, strict=True):
                    assert torch.equal(one, other)
            if kind != "SparseAdam":  # and it goes on as one
                optimizer.zero_grad()
                net(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
                whole = torch.cat([each.detach().flatten() for each in net.parameters()])
                close(hvd.broadcast(whole, 0), whole.double())


def check_wrapped_optimizer() -> None:
    root = 0
    net, plain = trained("Adam", 2 if hvd.rank() == root else 0, 3)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root)
    hvd.broadcast_optimizer_state(optimizer, root)
    assert isinstance(optimizer, torch.optim.Adam)
    _, expected = trained("Adam", 2, 3)
    equal(optimizer.state_dict()["state"], expected.state_dict()["state"])


def check_gradients_after_the_broadcast_of_a_state() -> None:
    """An optimizer without state has gradients after it, zeros; one with state stays as it is."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    net[0].bias.requires_grad_(False)
    net[1].bias.grad = torch.ones(1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    before = copy.deepcopy(list(net.parameters()))
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert net[0].bias.grad is None
    assert net[1].bias.grad.item() == 1  # what is there is not lost
    for weight in (net[0].weight, net[1].weight):
        assert weight.grad is not None
        assert weight.grad.shape == weight.shape
        assert not weight.grad.any()
    if hvd.rank() == 0:
        equal([each.detach() for each in before], [each.detach() for each in net.parameters()])
    table = nn.Embedding(4, 2, sparse=True)
    for kind, model in ((torch.optim.SparseAdam, None), (torch.optim.SGD, table)):
        table.weight.grad = None
        hvd.broadcast_optimizer_state(kind(table.parameters(), lr=0.1), 0, model)
        assert table.weight.grad.layout is torch.sparse_coo
    net, optimizer = trained("Adam", 2, 3)
    optimizer.zero_grad()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert all(each.grad is None for each in net.parameters())


def check_optimizer_options() -> None:
    """Groups, tensors among the options, momentum of sparse gradients, other kinds of state."""
    size, rank = hvd.size(), hvd.rank()
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))
    groups = [{"params": [a], "lr": torch.tensor(0.1 * (rank + 1))}, {"params": [b], "lr": 1.0}]
    optimizer = torch.optim.Adam(groups, foreach=False)
    own = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[1]["lr"] = float(rank)
    optimizer.state[b]["history"] = [torch.full((2,), float(rank)), ("x", rank, None)]
    optimizer.state["global"] = {"count": torch.tensor(rank)}
    hvd.broadcast_optimizer_state(optimizer, size - 1)
    assert optimizer.param_groups[0]["lr"] is own
    close(own, torch.tensor(0.1 * size))
    assert optimizer.param_groups[1]["lr"] == size - 1
    equal(
        optimizer.state[b]["history"],
        [torch.full((2,), float(size - 1)), ("x", size - 1, None)],
    )
    assert optimizer.state["global"]["count"].item() == size - 1
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0, table)
    momentum = optimizer.state[table.weight]["momentum_buffer"]
    assert momentum.layout is torch.sparse_coo
    close(momentum.to_dense()[1], torch.ones(2))
    fewer = torch.optim.SGD([a] if rank == 0 else [a, b], lr=0.1)
    raised(ValueError, lambda: hvd.broadcast_optimizer_state(fewer, 0), "other parameters")
