"""What each rank of torch_step.py does: the same work over gloo, shanty and mpi4py, in turn.

    torch_step_rank.py REPEATS

All are in the same processes, one after the other within each round; who is first changes from
round to round. "checked" is shanty as with SHANTY_CHECK=1. Rank 0 prints one line of JSON:
name → seconds, round by round.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shanty.collectives import handshake
from shanty.torch.background_thread import THREAD

SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]  # bytes
LEAST = 0.2  # seconds that a round lasts at least
LEAST_STEPS = 0.6  # the same of training steps, which vary more
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


def again(call: Callable[[], object], world: MPI.Intracomm, least: float = LEAST) -> Round:
    """Rounds of a call that all ranks make, as often as fills so many seconds on all of them."""

    def seconds(times: int) -> float:
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        taken: float = world.allreduce(time.perf_counter() - begun, MPI.MAX)
        return taken

    call()  # connects, which would pass for a slow call
    times = 1
    while (taken := seconds(times)) < least / 4:
        times *= 4
    often = max(3, math.ceil(1.2 * least * times / taken))

    def run() -> float:
        call()
        return seconds(often) / often

    return run


def training(make: Callable[[], tuple[nn.Module, Tensor]], group: object) -> Callable[[], object]:
    """A training step; without a group each rank trains alone."""
    torch.manual_seed(0)
    model, batch = make()
    if group is not None:
        model = DistributedDataParallel(model, process_group=group)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()

    return step


def checked(round_: Round) -> Round:
    """The same rounds as with SHANTY_CHECK=1."""

    def run() -> float:
        handshake.CHECKED = THREAD.checked = True
        try:
            return round_()
        finally:
            handshake.CHECKED = THREAD.checked = False

    return run


def plan(gloo: object, mpi: object, world: MPI.Intracomm) -> dict[str, dict[str, Round]]:
    """Everything that is measured: what, then over what."""
    found: dict[str, dict[str, Round]] = {}
    for name, make in (("mlp", mlp), ("cnn", cnn)):
        steps = {"gloo": training(make, gloo), "shanty": training(make, mpi)}
        steps["alone"] = training(make, None)
        found[name] = {over: again(step, world, LEAST_STEPS) for over, step in steps.items()}
    for nbytes in SIZES:
        tensor = torch.zeros(nbytes // 4)
        memory = tensor.numpy()
        calls: dict[str, Callable[[], object]] = {
            "gloo": lambda t=tensor: dist.all_reduce(t, group=gloo),
            "shanty": lambda t=tensor: dist.all_reduce(t, group=mpi),
            "mpi4py": lambda m=memory: world.Allreduce(MPI.IN_PLACE, m),
        }
        found[str(nbytes)] = {over: again(call, world) for over, call in calls.items()}
    for each in found.values():
        each["checked"] = checked(each["shanty"])
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # at MASTER_ADDR, as shanty has set it
    gloo, mpi = dist.group.WORLD, dist.new_group(backend="mpi")
    world = MPI.COMM_WORLD.Dup()
    everything = plan(gloo, mpi, world)
    seconds: dict[str, list[float]] = {}
    for number in range(int(sys.argv[1])):
        for what, rounds in everything.items():
            order = list(rounds.items())
            first = number % len(order)
            for over, run in order[first:] + order[:first]:
                seconds.setdefault(f"{what} {over}", []).append(run())
    if world.rank == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
