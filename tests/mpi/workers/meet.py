"""Ranks 0 and 1 meet by a port of MPI: `meet.py`."""

from mpi4py import MPI

world = MPI.COMM_WORLD
port = world.bcast(MPI.Open_port() if world.rank == 0 else None)
meet = MPI.COMM_SELF.Accept if world.rank == 0 else MPI.COMM_SELF.Connect
other = meet(port)
print("met", other.sendrecv(world.rank, 0, source=0), flush=True)
other.Disconnect()
if world.rank == 0:
    MPI.Close_port(port)
