"""What each rank of torch_step.py does: the same work over gloo, shanty and mpi4py, in turn.

    torch_step_rank.py REPEATS

All are in the same processes, one after the other within each round. Rank 0 prints one line of
JSON: name → seconds, round by round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import shanty.torch  # noqa: F401

SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]  # bytes
STEPS = {"mlp": 10, "cnn": 40}  # of training, in a round
Round = Callable[[], float]  # does it a number of times; the seconds for one


def mlp() -> tuple[nn.Module, Tensor]:
    """9.6 million parameters, and a batch."""
    layers = [nn.Linear(1024, 2400), nn.ReLU(), nn.Linear(2400, 2400), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2400, 580)), torch.randn(32, 1024)


def cnn() -> tuple[nn.Module, Tensor]:
    """A small one, for images of 28 x 28, and a batch."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(32 * 49, 10)), torch.randn(16, 1, 28, 28)


def training(
    make: Callable[[], tuple[nn.Module, Tensor]], group: object, steps: int, world: MPI.Intracomm
) -> Round:
    """Rounds of training steps; without a group each rank trains alone."""
    torch.manual_seed(0)
    model, batch = make()
    if group is not None:
        model = DistributedDataParallel(model, process_group=group)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def run() -> float:
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            optimiser.zero_grad()
            model(batch).square().mean().backward()
            optimiser.step()
        return (time.perf_counter() - begun) / steps

    return run


def reducing(call: Callable[[], object], nbytes: int, world: MPI.Intracomm) -> Round:
    """Rounds of one allreduce again and again."""
    times = max(3, min(300, (32 << 20) // nbytes))

    def run() -> float:
        call()
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - begun) / times

    return run


def rounds(gloo: object, mpi: object, world: MPI.Intracomm) -> dict[str, Round]:
    """Everything that is measured, by name: what, then over what."""
    found: dict[str, Round] = {}
    for name, make in (("mlp", mlp), ("cnn", cnn)):
        for over, group in (("gloo", gloo), ("shanty", mpi), ("alone", None)):
            found[f"{name} {over}"] = training(make, group, STEPS[name], world)
    for nbytes in SIZES:
        tensor = torch.zeros(nbytes // 4)
        memory = tensor.numpy()
        calls: dict[str, Callable[[], object]] = {
            "gloo": lambda t=tensor: dist.all_reduce(t, group=gloo),
            "shanty": lambda t=tensor: dist.all_reduce(t, group=mpi),
            "mpi4py": lambda m=memory: world.Allreduce(MPI.IN_PLACE, m),
        }
        for over, call in calls.items():
            found[f"{nbytes} {over}"] = reducing(call, nbytes, world)
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # at MASTER_ADDR, as shanty has set it
    gloo, mpi = dist.group.WORLD, dist.new_group(backend="mpi")
    world = MPI.COMM_WORLD.Dup()
    plan = rounds(gloo, mpi, world)
    for run in plan.values():
        run()  # not counted
    seconds: dict[str, list[float]] = {name: [] for name in plan}
    for _ in range(int(sys.argv[1])):
        for name, run in plan.items():
            seconds[name].append(world.allreduce(run(), MPI.MAX))
    if world.rank == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
