"""DistributedDataParallel over the `mpi` backend against gloo: equal bit for bit on two ranks in
float32. Both run in the same processes, gloo first, from the same seed and data.
Started by mpirun through ../test_torch_group.py; argument: a file for gloo's rendezvous.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import shanty.torch  # noqa: F401
from shanty.collectives import operations

RANK, WORLD = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
STEPS = 4


class Branches(nn.Module):
    """A net with batch-norm buffers, and a part that only some steps use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.second, self.other, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor, path: str) -> Tensor:
        x = self.first(x)
        paths = {"second": [self.second], "other": [self.other], "both": [self.second, self.other]}
        return self.last(sum(layer(x) for layer in paths[path]))


def train(
    hook: Callable[[DistributedDataParallel], None] | None, **options: object
) -> list[Tensor]:
    """Gradients, parameters and buffers after each of some steps, one of them in no_sync."""
    torch.manual_seed(RANK)  # replicas start differently: DDP has to make them equal
    paths = ["second", "other"] if options.get("find_unused_parameters") else ["both"]
    model = DistributedDataParallel(Branches(), bucket_cap_mb=0.01, **options)  # several buckets
    if hook is not None:
        hook(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + RANK)
    seen = []
    for step in range(STEPS):
        optimiser.zero_grad()
        # DDP itself (with gloo too) fails on no_sync with these two.
        accumulating = step == 2 and not {"static_graph", "find_unused_parameters"} & set(options)
        with model.no_sync() if accumulating else nullcontext():
            x = torch.randn(16, 20, generator=data)
            model(x, paths[step % len(paths)]).square().mean().backward()
        if not accumulating:
            optimiser.step()
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen += [p.detach().clone() for p in (*model.parameters(), *model.buffers())]
    return seen


def words() -> list[Tensor]:
    """An embedding with sparse gradients, whose rows are others on each rank."""
    torch.manual_seed(RANK)
    net = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(32, 1))
    model = DistributedDataParallel(net)
    optimiser = torch.optim.SparseAdam(net[0].parameters()), torch.optim.SGD(net[2].parameters())
    data = torch.Generator().manual_seed(100 + RANK)
    for _ in range(STEPS):
        x = torch.randint(50, (3 + RANK, 4), generator=data)
        model(x).square().mean().backward()
        for each in optimiser:
            each.step()
            each.zero_grad()
    return [each.detach().clone() for each in net.parameters()]


def power(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


VARIANTS: dict[str, Callable[[], list[Tensor]]] = {
    "plain": lambda: train(None),
    "views": lambda: train(None, gradient_as_bucket_view=True),
    "unused": lambda: train(None, find_unused_parameters=True),
    "static": lambda: train(None, static_graph=True),
    "hook": lambda: train(lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook)),
    "sparse": words,
}
# Compression to half rounds the sum once here, gloo adds in half: equal within that rounding.
HALF = {
    "fp16": lambda: train(lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook)),
}
GLOO: dict[str, list[Tensor]] = {}


def agree(name: str, got: list[Tensor], tolerance: float = 0.0) -> None:
    want = GLOO[name]
    assert len(got) == len(want) > 0
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        if tolerance:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        else:
            assert torch.equal(a, b), (name, index, (a - b).abs().max())


def check_gradients_equal_gloo() -> None:
    for name, variant in VARIANTS.items():
        # With more ranks the order of summation differs, and so does the last bit.
        agree(name, variant(), 0.0 if WORLD == 2 else 1e-5)


def check_half_gradients_agree() -> None:
    for name, variant in HALF.items():
        agree(name, variant(), 1e-2)


def check_power_sgd() -> None:
    """Its hook communicates in callbacks, in which gloo may lock up: compare the ranks."""
    for tensor in train(power)[-1:]:
        every = [torch.empty_like(tensor) for _ in range(WORLD)]
        dist.all_gather(every, tensor)
        assert all(torch.equal(every[0], other) for other in every)
        assert torch.all(torch.isfinite(tensor))


def check_no_sync_keeps_local() -> None:
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    with model.no_sync():
        model(torch.full((1, 3), float(RANK + 1))).sum().backward()
    assert torch.all(model.module.weight.grad == RANK + 1)
    model(torch.full((1, 3), float(RANK + 1))).sum().backward()
    mean = sum(2 * (r + 1) for r in range(WORLD)) / WORLD
    torch.testing.assert_close(model.module.weight.grad, torch.full((1, 3), mean))


def check_failed_bucket_fails_backward() -> None:
    model = DistributedDataParallel(nn.Linear(3, 1))
    original = operations.all_reduce

    def broken(*_: object) -> None:
        raise MPI.Exception(MPI.ERR_OTHER)

    operations.all_reduce = broken  # type: ignore[assignment]
    try:
        model(torch.ones(1, 3)).sum().backward()
    except RuntimeError as error:
        assert "all_reduce on group" in str(error), error
    else:
        raise AssertionError("a failed bucket passed for a gradient")
    finally:
        operations.all_reduce = original


def overlapping_groups() -> None:
    """Groups of mpi in a world of gloo, whose ranks have not all been in one before."""
    pairs = [dist.new_group([rank, rank + 1], backend="mpi") for rank in range(WORLD - 1)]
    for rank, pair in enumerate(pairs):
        if RANK in (rank, rank + 1):
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=pair)
            assert tensor.item() == 2


def begin() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{sys.argv[1]}"
    dist.init_process_group("gloo", init_method=store, rank=RANK, world_size=WORLD)
    for name, variant in {**VARIANTS, **HALF}.items():
        GLOO[name] = variant()
    overlapping_groups()
    dist.destroy_process_group()
    dist.init_process_group("mpi")
