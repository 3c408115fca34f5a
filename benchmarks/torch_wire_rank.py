"""What each rank of torch_wire.py does: one allreduce over gloo, shanty and mpi4py, in turn.

    torch_wire_rank.py BYTES REPEATS

Rank 0 prints one line of JSON: name → [seconds, CPU seconds of all ranks together], round by round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from mpi4py import MPI

import shanty.torch  # noqa: F401

TIMES = 3  # allreduces in a round


def main() -> None:
    nbytes, repeats = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # at MASTER_ADDR, as shanty has set it
    gloo, mpi = dist.group.WORLD, dist.new_group(backend="mpi")
    world = MPI.COMM_WORLD.Dup()
    single = torch.zeros(nbytes // 4)
    half = torch.zeros(nbytes // 2, dtype=torch.bfloat16)
    memory = single.numpy()
    calls: dict[str, Callable[[], object]] = {
        "shanty": lambda: dist.all_reduce(single, group=mpi),
        "gloo": lambda: dist.all_reduce(single, group=gloo),
        "mpi4py": lambda: world.Allreduce(MPI.IN_PLACE, memory),
        "shanty, bfloat16": lambda: dist.all_reduce(half, group=mpi),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            world.Barrier()
            begun, busy = time.perf_counter(), time.process_time()
            for _ in range(TIMES):
                call()
            seconds = world.allreduce((time.perf_counter() - begun) / TIMES, MPI.MAX)
            cpu = world.allreduce((time.process_time() - busy) / TIMES, MPI.SUM)
            if number:  # the first round connects
                found[name].append((seconds, cpu))
    if world.rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
