"""A rank of `elastic_peers.py`: trains a small model by the way that its argument names.

It appends a line to `steps` for each step: the time, and the world that the step was made in.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOLDER = Path(os.environ["PEERS"])
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)


def begun(rank: str) -> None:
    """Tell the benchmark which process this rank is."""
    (FOLDER / f"new-{os.getpid()}").write_text(str(os.getpid()))
    (FOLDER / f"new-{os.getpid()}").replace(FOLDER / f"pid-{rank}")


def stepped(world: object) -> None:
    """Note that a step is over."""
    with (FOLDER / "steps").open("a") as file:
        file.write(f"{time.monotonic()} {world}\n")
    time.sleep(0.01)


def backward(trained: Any) -> None:
    trained(torch.randn(32, 256)).square().mean().backward()


def with_shanty() -> None:
    """Go on from the last commit with those that are left."""
    import shanty.torch as hvd

    begun(os.environ["RANK"])
    hvd.init()
    own = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=own, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            own.zero_grad()
            backward(model)
            own.step()
            stepped(hvd.size())
            state.step += 1
            if state.step % 10 == 0:
                state.commit()

    train(state)


def with_torchrun() -> None:
    """Start again from a checkpoint: torchrun starts all processes again."""
    begun(os.environ["RANK"])
    dist.init_process_group("gloo")
    saved = FOLDER / "saved"
    if saved.exists():
        model.load_state_dict(torch.load(saved))
    trained = torch.nn.parallel.DistributedDataParallel(model)
    step = 0
    while True:
        optimizer.zero_grad()
        backward(trained)
        optimizer.step()
        step += 1
        stepped(f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{dist.get_world_size()}")
        if step % 10 == 0 and dist.get_rank() == 0:
            torch.save(model.state_dict(), saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)


def with_torchft() -> None:
    """Go on with the replicas that are left."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    rank = os.environ["REPLICA_GROUP_ID"]
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    _store = dist.TCPStore(*place, is_master=True, wait_for_workers=False)  # as by torchrun
    begun(rank)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1,
        load_state_dict=lambda each: model.load_state_dict(each["model"]),
        state_dict=lambda: {"model": model.state_dict()},
        replica_id=f"replica-{rank}", timeout=timedelta(seconds=10),
    )  # fmt: skip
    trained, own = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    while True:
        own.zero_grad()
        backward(trained)
        before = manager.current_step()
        own.step()
        if manager.current_step() > before:  # else it was thrown away
            stepped(manager.num_participants())


{"shanty": with_shanty, "torchrun": with_torchrun, "torchft": with_torchft}[sys.argv[1]]()
