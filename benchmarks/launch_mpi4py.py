"""The smallest job: one allreduce."""

import numpy
from mpi4py import MPI

total = numpy.ones(1)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
assert total[0] == MPI.COMM_WORLD.size
