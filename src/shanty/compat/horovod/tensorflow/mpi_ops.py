"""`horovod.tensorflow.mpi_ops`: the operations and the questions about the world."""

# ruff: noqa: F403

from shanty.collectives.process_sets import *
from shanty.collectives.world import *
from shanty.tensorflow.api import init as init
from shanty.tensorflow.ops import *
