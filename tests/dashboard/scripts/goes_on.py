"""Prints and logs until it is stopped."""

import itertools
import time

from mpi4py import MPI

import shanty

rank = MPI.COMM_WORLD.Get_rank()
for step in itertools.count():
    print(f"\x1b[32mstep {step}\x1b[0m of rank {rank}", flush=True)
    if rank == 0:
        shanty.log(step=step, loss=1 / (step + 1))
    time.sleep(0.1)
