"""All names of Horovod's API in one place: `shanty.torch` shows them, and `horovod.torch`."""

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
from shanty.torch.hvd import functions, ops
from shanty.torch.hvd.compression import Compression
from shanty.torch.hvd.functions import *
from shanty.torch.hvd.ops import *
from shanty.torch.hvd.optimizer import DistributedOptimizer
from shanty.torch.hvd.sync_batch_norm import SyncBatchNorm
from shanty.torch.hvd.world import cuda_built, init

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "cuda_built",
    "global_process_set",
    "init",
    "remove_process_set",
]
__all__ += functions.__all__
__all__ += ops.__all__
__all__ += world.__all__
