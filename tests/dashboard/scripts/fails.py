"""Rank 1 fails, the others wait for it."""

from mpi4py import MPI

world = MPI.COMM_WORLD
print("\x1b[31mred\x1b[0m <img src=x onerror=alert(1)> <script>alert(1)</script>", flush=True)
if world.Get_rank() == 1:
    raise KeyError("validation")
world.Barrier()
