"""Many steps with the distributed optimizer: memory stays flat, and no thread, file or request is
left. Arguments: the number of steps. Started through ../test_long.py.
"""

from __future__ import annotations

import sys
import threading

import torch
from steady import Steady
from torch import nn

import shanty.torch as hvd

STEPS = int(sys.argv[1])
CHECK_BOUND = 550.0  # seconds, for ten thousand steps
WARM = STEPS // 5  # steps after which everything that stays is there
GROWTH = 4 << 20  # bytes that resident memory may grow by afterwards, for the allocator's sake
NAMES = 10  # new ones, every tenth step


def all_else(step: int) -> None:
    """What a loop may do beside its steps."""
    rank, world = hvd.rank(), hvd.size()
    hvd.allreduce(torch.ones(1))  # unnamed
    for number in range(NAMES):
        hvd.allreduce(torch.ones(900, dtype=torch.bfloat16), name=f"step.{step}.{number}")
    hvd.grouped_allreduce([torch.ones(3), torch.ones(2, 2)], name="group")
    assert len(hvd.allgather(torch.ones(rank + 1, 2))) == world * (world + 1) // 2
    hvd.alltoall(torch.ones(world * 2))
    hvd.reducescatter(torch.ones(world, 3))
    hvd.broadcast_(torch.ones(5), root_rank=step % world, name="weights")
    assert hvd.broadcast_object({"step": step})["step"] == step
    hvd.synchronize(hvd.allreduce_async(torch.ones(7), name="late"))
    if rank == step % world:
        try:
            hvd.broadcast(torch.ones(1), world)
        except (ValueError, hvd.HorovodInternalError):
            pass
        else:
            raise AssertionError("no error")
    hvd.barrier()


def check_steps() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimiser: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimiser = hvd.DistributedOptimizer(optimiser, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimiser, root_rank=0)
    batch = torch.randn(8, 64)
    for step in range(STEPS):
        if step == WARM:
            steady = Steady()
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()
        if step % 10 == 0:
            all_else(step)
    steady.check(GROWTH)
    sums = [float(each.detach().double().sum()) for each in model.parameters()]
    assert all(each == sums for each in hvd.allgather_object(sums)), "the models have parted"


def check_shutdown_leaves_nothing() -> None:
    threads = {each.name for each in threading.enumerate()}
    hvd.shutdown()
    hvd.init()
    assert {each.name for each in threading.enumerate()} == threads
