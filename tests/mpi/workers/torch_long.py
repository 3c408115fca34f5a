"""Many training steps: memory stays flat, and no thread, file or request is left. Arguments: the
number of steps. Started through ../test_long.py.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from steady import Steady
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shanty.torch  # noqa: F401
from shanty.torch.background_thread import THREAD

STEPS = int(sys.argv[1])
WARM = STEPS // 5  # steps after which everything that stays is there
GROWTH = 4 << 20  # bytes that resident memory may grow by afterwards, for the allocator's sake


def check_steps() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch, rank, world = torch.randn(8, 64), dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        if step == WARM:
            steady = Steady()
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()
        loss = torch.ones(1)
        dist.all_reduce(loss)
        if step % 10 == 0:  # and all else that a loop may do
            half = torch.ones(9000, dtype=torch.bfloat16)
            dist.all_reduce(half, async_op=True).wait()
            got = torch.empty(1)
            works = [dist.isend(loss, (rank + 1) % world), dist.irecv(got, (rank - 1) % world)]
            for work in works:
                work.wait()
    steady.check(GROWTH)
    assert not THREAD.under_way and not THREAD.abandoned
