"""Prints what a dmlc-submit line has set, and that the ranks are in one world."""

import os
import sys

from mpi4py import MPI

names = sorted(name for name in os.environ if name.startswith(("DMLC_", "WORD")))
print("world", MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), *sys.argv[1:])
print(*(f"{name}={os.environ[name]}" for name in names), file=sys.stderr)
