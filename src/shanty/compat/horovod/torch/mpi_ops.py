"""Horovod's operations on tensors, and its questions about the world."""

# ruff: noqa: F403

from shanty.collectives import world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from shanty.collectives.world import *
from shanty.torch.hvd import ops
from shanty.torch.hvd.compression import Compression
from shanty.torch.hvd.ops import *
from shanty.torch.hvd.world import cuda_built, init

__all__ = [
    "Compression",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "cuda_built",
    "global_process_set",
    "init",
    "remove_process_set",
]
__all__ += ops.__all__
__all__ += world.__all__
