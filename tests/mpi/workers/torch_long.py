"""Many training steps: memory stays flat, and no thread, file or request is left. Arguments: the
number of steps. Started through ../test_torch_long.py.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import harness
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shanty.torch  # noqa: F401
from shanty.torch.work import WORKER

STEPS = int(sys.argv[1])
WARM = STEPS // 5  # steps after which everything that stays is there
GROWTH = 4 << 20  # bytes that resident memory may grow by afterwards, for the allocator's sake


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def held() -> tuple[int, int]:
    """Threads and open files."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def check_steps() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch, rank, world = torch.randn(8, 64), dist.get_rank(), dist.get_world_size()
    before = 0, (0, 0)
    for step in range(STEPS):
        if step == WARM:
            gc.collect()
            before = resident(), held()
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
    gc.collect()
    assert held() == before[1], (held(), before[1])
    grown = resident() - before[0]
    assert grown < GROWTH, f"{grown} bytes more after {STEPS} steps than after {WARM}"
    assert not WORKER.under_way and not WORKER.abandoned


CHECKS = [check_steps]

if __name__ == "__main__":
    dist.init_process_group("mpi")
    harness.run(CHECKS)
    dist.destroy_process_group()
