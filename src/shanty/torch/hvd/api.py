"""All names of Horovod's API in one place: `shanty.torch` shows them, and `horovod.torch`."""

# ruff: noqa: F403

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shanty.collectives import api
from shanty.collectives.api import *
from shanty.torch.hvd import calls, functions, ops
from shanty.torch.hvd.compression import Compression
from shanty.torch.hvd.functions import *
from shanty.torch.hvd.ops import *
from shanty.torch.hvd.optimizer import DistributedOptimizer
from shanty.torch.hvd.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from shanty.collectives.kernels import Kernels

__all__ = ["Compression", "DistributedOptimizer", "SyncBatchNorm", "cuda_built", "init"]
__all__ += functions.__all__
__all__ += ops.__all__
__all__ += api.__all__


def _kernels() -> Kernels:
    from shanty.torch.kernels import KERNELS  # imports, and so starts, MPI

    return KERNELS


init = api.init_of("shanty.torch", _kernels, begun=calls.forget)


def cuda_built() -> bool:
    """Return whether this PyTorch has CUDA, so that tensors on a GPU can be passed."""
    return torch.version.cuda is not None
