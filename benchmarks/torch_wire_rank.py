"""What each rank of torch_wire.py does: the same calls over gloo, shanty and mpi4py, in turn.

    torch_wire_rank.py BYTES REPEATS

Who is first changes from round to round. Rank 0 prints one line of JSON: name → [seconds, CPU
seconds of all ranks together], round by round.
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

# torch 2.13 renamed them; the old names warn.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

TIMES = 3  # calls in a round


def main() -> None:
    nbytes, repeats = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # at MASTER_ADDR, as shanty has set it
    gloo, mpi = dist.group.WORLD, dist.new_group(backend="mpi")
    world = MPI.COMM_WORLD.Dup()
    single = torch.zeros(nbytes // 4)
    part = torch.zeros(len(single) // world.size)
    half = torch.zeros(nbytes // 2, dtype=torch.bfloat16)
    memory, little = single.numpy(), part.numpy()
    calls: dict[str, Callable[[], object]] = {
        "all_reduce shanty": lambda: dist.all_reduce(single, group=mpi),
        "all_reduce gloo": lambda: dist.all_reduce(single, group=gloo),
        "all_reduce mpi4py": lambda: world.Allreduce(MPI.IN_PLACE, memory),
        "all_reduce shanty, bfloat16": lambda: dist.all_reduce(half, group=mpi),
        "reduce_scatter shanty": lambda: reduce_scatter_single(part, single, group=mpi),
        "reduce_scatter mpi4py": lambda: world.Reduce_scatter_block(memory, little),
        "all_gather shanty": lambda: all_gather_single(single, part, group=mpi),
        "all_gather mpi4py": lambda: world.Allgather(little, memory),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        order = list(calls.items())
        first = number % len(order)
        for name, call in order[first:] + order[:first]:
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
