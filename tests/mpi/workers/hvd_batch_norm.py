"""SyncBatchNorm on parts of a batch, against BatchNorm on the whole of it.

See run_checks.py.
"""

from __future__ import annotations

import copy

import torch
from checks import raised
from torch import Tensor, nn

import shanty.torch as hvd

CHANNELS = 5
SHAPES = {nn.BatchNorm1d: (), nn.BatchNorm2d: (3, 4), nn.BatchNorm3d: (2, 3, 2)}


def rows() -> list[int]:
    """How many rows of a batch each rank has: not the same, and one of them none."""
    return [4 * rank for rank in range(hvd.size())]


def mine(whole: Tensor, dim: int = 0) -> Tensor:
    return whole.split(rows(), dim)[hvd.rank()]


def batches(*beyond: int, mean: float = 0.5, count: int = 3) -> list[Tensor]:
    made = torch.Generator().manual_seed(3)
    shape = (sum(rows()), CHANNELS, *beyond)
    return [torch.randn(shape, generator=made) * 2 + mean for _ in range(count)]


def pair(kind: type[nn.Module], **options: object) -> tuple[nn.Module, nn.Module]:
    """Ours, and the one that it takes the place of, with the same parameters."""
    torch.manual_seed(9)
    ours, theirs = hvd.SyncBatchNorm(CHANNELS, **options), kind(CHANNELS, **options)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    if theirs.affine:
        nn.init.normal_(theirs.weight)
        nn.init.normal_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def compare(ours: nn.Module, theirs: nn.Module, x: Tensor, tolerance: float = 1e-5) -> None:
    """One step of each, forward and backward, and what is left in the buffers."""
    weights = torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype)
    part, whole = mine(x).clone().requires_grad_(), x.clone().requires_grad_()
    ours.zero_grad()
    theirs.zero_grad()
    got, want = ours(part), theirs(whole)
    assert got.dtype == want.dtype
    close(got, mine(want), tolerance)
    (got * mine(weights)).sum().backward()
    (want * weights).sum().backward()
    close(part.grad, mine(whole.grad), tolerance)
    for name, parameter in theirs.named_parameters():
        summed = hvd.allreduce(ours.get_parameter(name).grad, op=hvd.Sum, name=name)
        close(summed, parameter.grad, 10 * tolerance)
    for name, buffer in theirs.named_buffers():
        close(ours.get_buffer(name), buffer, tolerance)


def check_training() -> None:
    for kind, beyond in SHAPES.items():
        ours, theirs = pair(kind)
        for x in batches(*beyond):
            compare(ours, theirs, x)


def check_options() -> None:
    for options in (
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": None},
        {"momentum": 0.7, "eps": 0.3},
        {"affine": False, "track_running_stats": False},
    ):
        ours, theirs = pair(nn.BatchNorm2d, **options)
        for x in batches(3, 4):
            compare(ours, theirs, x)


def check_eval() -> None:
    for options in ({}, {"track_running_stats": False}):
        ours, theirs = pair(nn.BatchNorm2d, **options)
        for x in batches(2, 2):
            compare(ours, theirs, x)
        ours.eval()
        theirs.eval()
        before = copy.deepcopy(ours.state_dict())
        compare(ours, theirs, batches(2, 2)[0])
        for name, value in ours.state_dict().items():
            assert torch.equal(value, before[name]), name
    ours = pair(nn.BatchNorm2d)[0].eval()
    if hvd.rank() == 0:  # with running statistics it needs nobody else
        ours(torch.randn(3, CHANNELS, 2, 2))


def check_other_dtypes() -> None:
    ours, theirs = (each.double() for each in pair(nn.BatchNorm2d))
    for x in batches(3, 4):
        compare(ours, theirs, x.double(), 1e-10)
    for convert in (lambda each: each, lambda each: each.bfloat16()):  # parameters in float32, too
        ours, theirs = (convert(each) for each in pair(nn.BatchNorm2d))
        for x in batches(3, 4):
            compare(ours, theirs, x.bfloat16(), 5e-2)


def check_large_mean() -> None:
    """Squares of 10,000 have no digits left for a variance of 4 in float32."""
    ours, _ = pair(nn.BatchNorm2d)
    _, exact = (each.double() for each in pair(nn.BatchNorm2d))
    x = batches(3, 4, mean=1e4)[0]
    close(ours(mine(x)).double(), mine(exact(x.double())), 2e-3)
    close(ours.running_var.double(), exact.running_var, 1e-4)


def check_not_contiguous() -> None:
    ours, theirs = pair(nn.BatchNorm2d)
    for x in batches(3, 4):
        compare(ours, theirs, x.contiguous(memory_format=torch.channels_last))


def check_in_a_model() -> None:
    """Trained together with DistributedOptimizer: as one process on the whole batch."""

    def model(kind: type[nn.Module]) -> nn.Module:
        torch.manual_seed(1)
        first = [nn.Linear(6, CHANNELS), kind(CHANNELS), nn.ReLU()]
        return nn.Sequential(*first, nn.Linear(CHANNELS, CHANNELS), kind(CHANNELS))

    got, want = model(hvd.SyncBatchNorm), model(nn.BatchNorm1d)
    ours = hvd.DistributedOptimizer(
        torch.optim.SGD(got.parameters(), lr=0.05), got.named_parameters()
    )
    plain = torch.optim.SGD(want.parameters(), lr=0.05)
    size = hvd.size()
    for step in range(4):
        x = torch.randn(8 * size, 6, generator=torch.Generator().manual_seed(step))
        for net, optimizer, given in ((got, ours, x.chunk(size)[hvd.rank()]), (want, plain, x)):
            optimizer.zero_grad()
            (net(given) - given[:, :CHANNELS]).square().mean().backward()
            optimizer.step()
    for a, b in zip(got.state_dict().values(), want.state_dict().values(), strict=True):
        close(a, b, 1e-4)


def check_mistakes() -> None:
    ours, _ = pair(nn.BatchNorm1d)
    raised(ValueError, lambda: ours(torch.ones(CHANNELS)), "dimensions")
    only = 1 if hvd.rank() == 0 else 0
    raised(ValueError, lambda: ours(torch.ones(only, CHANNELS)), "more than one value")
    frozen = ours.requires_grad_(False)
    assert not frozen(torch.randn(2, CHANNELS)).requires_grad
