"""What checks of training with PyTorch share: a model, and two ways to train it.

Each rank trains on its part of a batch, and every rank also trains a copy of the model alone on
the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from mpi4py import MPI
from torch import Tensor, nn

import shanty.torch as hvd

TOLERANCE = 1e-5  # relative and absolute, in float32 after STEPS steps
STEPS = 4
ROWS = 24  # of a batch: divisible by 2, 3 and 4, and by 2 once more
Make = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
Cut = Callable[[Tensor], Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def network() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 12, generator=made), torch.randn(ROWS, 1, generator=made)


def part(whole: Tensor, rank: int | None = None, size: int | None = None) -> Tensor:
    world = MPI.COMM_WORLD
    return whole.chunk(size or world.size)[world.rank if rank is None else rank]


def everything(whole: Tensor) -> Tensor:
    return whole


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - y.to(dtype)).square().mean()


def sgd(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    cut: Cut = part,
    loss: Loss = mean_square,
    numbers: Sequence[int] = range(STEPS),
) -> None:
    for step in numbers:
        optimizer.zero_grad()
        x, y = batch(step)
        loss(model, cut(x), cut(y)).backward()
        optimizer.step()


def distributed(model: nn.Module, make: Make = sgd, **options: object) -> torch.optim.Optimizer:
    """An optimizer of the model, with the gradients of all ranks."""
    options.setdefault("named_parameters", model.named_parameters())
    return hvd.DistributedOptimizer(make(list(model.parameters())), **options)


def together(make: Make = sgd, model: nn.Module | None = None, **options: object) -> nn.Module:
    """A model trained by all ranks, each on its part."""
    model = model or network()
    steps(model, distributed(model, make, **options))
    return model


def alone(make: Make = sgd, model: nn.Module | None = None) -> nn.Module:
    """A model trained by one process on everything."""
    model = model or network()
    steps(model, make(list(model.parameters())), everything)
    return model


def agree(got: nn.Module, want: nn.Module, tolerance: float = TOLERANCE) -> None:
    pairs = list(zip(got.parameters(), want.parameters(), strict=True))
    assert pairs
    for a, b in pairs:
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


def alike(
    train: Callable[[nn.Module, torch.optim.Optimizer, Cut], None] = steps,
    model: Callable[[], nn.Module] = network,
    make: Make = sgd,
    tolerance: float = TOLERANCE,
    **options: object,
) -> None:
    """Train such a model on all ranks, then on this one alone; both are the same after it."""
    got, want = model(), model()
    train(got, distributed(got, make, **options), part)
    train(want, make(list(want.parameters())), everything)
    agree(got, want, tolerance)


def gradients(step: int = 0) -> list[list[Tensor]]:
    """What each rank's gradients are, by computing all of them here."""
    found = []
    for rank in range(hvd.size()):
        model = network()
        x, y = batch(step)
        mean_square(model, part(x, rank), part(y, rank)).backward()
        found.append([each.grad for each in model.parameters()])
    return found
