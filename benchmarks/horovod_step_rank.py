"""What each rank of horovod_step.py does: steps and reductions through Horovod's API, in turn.

    horovod_step_rank.py ROUND [horovod]

With "horovod" it is Horovod itself that does it, else shanty, beside its own DDP and bare MPI. Who
is first changes from ROUND to ROUND. Rank 0 prints one line of JSON: name → seconds, and name →
cycles of the controller for one call.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

CPP = sys.argv[2:] == ["horovod"]
if CPP:
    import horovod.torch as hvd
else:
    import torch.distributed as dist
    from mpi4py import MPI
    from torch.nn.parallel import DistributedDataParallel

    import shanty.torch as hvd
    from shanty.collectives import process_sets

TENSORS = 500
SIZES = [1, 4, 16, 64, 256]  # KiB of each of them
LEAST = 0.2  # seconds that a round lasts at least
Call = Callable[[], object]
Round = Callable[[], float]  # does it a number of times; the seconds for one


def mlp() -> tuple[nn.Module, Tensor]:
    """9.6 million parameters, and a batch; as in torch_step_rank.py."""
    layers = [nn.Linear(1024, 2400), nn.ReLU(), nn.Linear(2400, 2400), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2400, 580)), torch.randn(32, 1024)


def cnn() -> tuple[nn.Module, Tensor]:
    """A small one, for images of 28 x 28, and a batch; as in torch_step_rank.py."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(32 * 49, 10)), torch.randn(16, 1, 28, 28)


def longest(seconds: float) -> float:
    """The most that any rank took."""
    worst = hvd.allreduce(torch.tensor(seconds, dtype=torch.float64), op=hvd.Max, name="longest")
    return float(worst)


def cycles() -> int:
    """How often the ranks have come together so far."""
    return 0 if CPP else process_sets.negotiators[0].cycles


class Measured:
    """A call that all ranks make, as often as fills LEAST on all of them."""

    def __init__(self, call: Call) -> None:
        self.call = call
        call()  # connects, which would pass for a slow call
        times = 1
        while (taken := self.seconds(times)) < LEAST / 4:
            times *= 4
        self.often = max(3, math.ceil(1.2 * LEAST * times / taken))

    def seconds(self, times: int) -> float:
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(times):
            self.call()
        return longest(time.perf_counter() - begun)

    def round(self) -> float:
        self.call()
        return self.seconds(self.often) / self.often

    def cycles(self) -> float:
        """For one call, but those that only begin and end the measurement."""
        counts = []
        for often in (self.often, 2 * self.often):
            before = cycles()
            self.seconds(often)
            counts.append(cycles() - before)
        return (counts[1] - counts[0]) / self.often


def training(make: Callable[[], tuple[nn.Module, Tensor]], over: str) -> Call:
    """A training step; "alone" each rank trains by itself."""
    torch.manual_seed(0)
    model, batch = make()
    if over == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if over == "hvd":
        named = [(f"{make.__name__}.{name}", each) for name, each in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def small(kib: int) -> dict[str, Call]:
    """TENSORS tensors of so many KiB, reduced one by one, as a group, and as one tensor."""
    tensors = [torch.zeros(kib << 8) for _ in range(TENSORS)]
    names = [f"{kib}.{number}" for number in range(TENSORS)]
    together = torch.zeros(TENSORS * kib << 8)

    def named() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
            for tensor, name in zip(tensors, names)  # noqa: B905 (also for an older Python)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    calls: dict[str, Call] = {
        "one": lambda: hvd.allreduce_(together, name=f"{kib}.one", op=hvd.Sum),
        "named": named,
        "grouped": lambda: hvd.grouped_allreduce_(tensors, name=f"{kib}.group", op=hvd.Sum),
    }
    if not CPP:
        memory = together.numpy()
        calls["mpi4py"] = lambda: WORLD.Allreduce(MPI.IN_PLACE, memory)
    return calls


def plan() -> dict[str, dict[str, Measured]]:
    """Everything that is measured: what, then over what."""
    calls: dict[str, dict[str, Call]] = {}
    for make in (mlp, cnn):
        ways = ("hvd", "alone") if CPP else ("ddp", "hvd", "alone")
        calls[make.__name__] = {over: training(make, over) for over in ways}
    for kib in SIZES:
        calls[f"{TENSORS} of {kib} KiB"] = small(kib)
    one = torch.zeros(1)
    calls["negotiation"] = {"hvd": lambda: hvd.allreduce_(one, name="negotiation", op=hvd.Sum)}
    if not CPP:
        bare = one.clone().numpy()
        calls["negotiation"]["mpi4py"] = lambda: WORLD.Allreduce(MPI.IN_PLACE, bare)
    return {
        what: {over: Measured(call) for over, call in each.items()} for what, each in calls.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    if not CPP:
        dist.init_process_group("mpi")
    everything = plan()
    seconds: dict[str, float] = {}
    number = int(sys.argv[1])
    for rounds in everything.values():
        for each in rounds.values():
            each.round()  # what comes once in a training is not measured
    for what, rounds in everything.items():
        order = list(rounds.items())
        first = number % len(order)
        for over, each in order[first:] + order[:first]:
            seconds[f"{what} {over}"] = each.round()
    counted = {
        f"{what} {over}": each.cycles()
        for what, rounds in everything.items()
        for over, each in rounds.items()
        if over in ("hvd", "named")
    }
    if hvd.rank() == 0:
        print(json.dumps({"seconds": seconds, "cycles": counted}), flush=True)
    hvd.barrier()
    hvd.shutdown()


if not CPP:
    WORLD = MPI.COMM_WORLD.Dup()

if __name__ == "__main__":
    main()
