"""All names of Horovod's API in one place: `shanty.torch` shows them, and `horovod.torch`."""

# ruff: noqa: F403, F405

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from shanty.collectives import process_sets as registry
from shanty.collectives import world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import *
from shanty.collectives.world import *
from shanty.torch.hvd import calls, functions, ops
from shanty.torch.hvd.compression import Compression
from shanty.torch.hvd.functions import *
from shanty.torch.hvd.ops import *
from shanty.torch.hvd.optimizer import DistributedOptimizer
from shanty.torch.hvd.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Compression", "DistributedOptimizer", "HorovodInternalError", "SyncBatchNorm"]
__all__ += ["cuda_built", "init"]
__all__ += functions.__all__
__all__ += ops.__all__
__all__ += registry.__all__
__all__ += world.__all__


def init(
    comm: Sequence[int] | MPI.Comm | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Start, together with all other ranks. Once is enough; a second call changes nothing.

    comm: who takes part: ranks of MPI's world, in which this one must be, or an mpi4py
        communicator, which is duplicated. None, or no ranks: all of MPI's world.
    process_sets: process sets to register, the same on all ranks. None or "dynamic": none yet;
        `add_process_set` makes them at any time.
    Raises ValueError where the ranks do not agree on the process sets or there cannot be such,
    or for a bad value of a HOROVOD_… variable; RuntimeError where MPI has no
    MPI_THREAD_MULTIPLE, or another world than the launcher promised.
    """
    from shanty.torch.kernels import KERNELS  # imports, and so starts, MPI

    if world.init(comm, process_sets, KERNELS, "shanty.torch"):
        calls.forget()


def cuda_built() -> bool:
    """Return whether this PyTorch has CUDA, so that tensors on a GPU can be passed."""
    return torch.version.cuda is not None
