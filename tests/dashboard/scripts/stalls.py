"""Rank 1 waits for rank 0, which waits for nobody knows what."""

import threading

from mpi4py import MPI

if MPI.COMM_WORLD.Get_rank() == 0:
    threading.Event().wait()
MPI.COMM_WORLD.Barrier()
