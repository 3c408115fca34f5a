"""Every rank adds itself up with the others and says so."""

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
total = numpy.array([world.rank + 1.0])
world.Allreduce(MPI.IN_PLACE, total)
print(f"rank {world.rank} of {world.size}: {total[0]:.0f}", flush=True)
