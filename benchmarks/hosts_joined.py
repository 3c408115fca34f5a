"""The smallest MPI program: each rank says when MPI_Init was done, in seconds of the clock."""

import time

from mpi4py import MPI

print("joined", MPI.COMM_WORLD.rank, time.time(), flush=True)
