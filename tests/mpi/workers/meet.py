"""Ranks 0 and 1 meet by a port of MPI, after windows have worked: `meet.py`."""

import windows  # noqa: F401  the same launch will do
from mpi4py import MPI

world = MPI.COMM_WORLD
port = world.bcast(MPI.Open_port() if world.rank == 0 else None)
meet = MPI.COMM_SELF.Accept if world.rank == 0 else MPI.COMM_SELF.Connect
other = meet(port)
print("met", other.sendrecv(world.rank, 0, source=0), flush=True)
other.Disconnect()
if world.rank == 0:
    MPI.Close_port(port)
