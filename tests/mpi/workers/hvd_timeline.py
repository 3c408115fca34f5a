"""Timelines of a training loop, in the folder that is given: `start.json` by HOROVOD_TIMELINE,
`later.json` begun at run time, one that cannot be written. Run by ../test_hvd_timeline.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import shanty.torch as hvd

FOLDER = Path(sys.argv[1])


def train(steps: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimiser: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser = hvd.DistributedOptimizer(optimiser, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimiser.step()


def check_from_the_start() -> None:
    train(3)
    world = hvd.size()
    hvd.allgather(torch.ones(2), name="rows")
    hvd.alltoall(torch.ones(world), name="rows")
    hvd.reducescatter(torch.ones(world), name="rows")
    hvd.stop_timeline()
    train(1)  # which is in no file


def check_later() -> None:
    """Begun and ended amid requests; all ranks ask for it, and one writes."""
    early = hvd.allreduce_async(torch.ones(3), name="early")
    hvd.start_timeline(str(FOLDER / "later.json"), mark_cycles=True)
    hvd.synchronize(early)
    for number in range(20):
        hvd.allreduce(torch.ones(3), name=f"late.{number}")
    late = hvd.allreduce_async(torch.ones(3), name="last")
    hvd.stop_timeline()
    hvd.synchronize(late)


def check_one_that_cannot_be_written() -> None:
    hvd.start_timeline(str(FOLDER / "missing" / "timeline.json"))
    train(2)
    hvd.stop_timeline()
    hvd.stop_timeline()  # once more does no harm
