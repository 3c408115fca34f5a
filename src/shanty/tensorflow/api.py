"""All names of Horovod's API in one place: those of `shanty.tensorflow`."""

# ruff: noqa: F403, F405

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shanty.collectives import process_sets as registry
from shanty.collectives import world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import *
from shanty.collectives.world import *
from shanty.tensorflow import cluster, functions, ops
from shanty.tensorflow.compression import Compression
from shanty.tensorflow.functions import *
from shanty.tensorflow.installed import tf
from shanty.tensorflow.ops import *
from shanty.tensorflow.optimizer import DistributedOptimizer
from shanty.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Compression", "HorovodInternalError", "cuda_built", "gpu_available", "init"]
__all__ += ["DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape"]
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
    from shanty.collectives.array_kernels import KERNELS  # imports, and so starts, MPI

    cluster.forget()
    world.init(comm, process_sets, KERNELS, "shanty.tensorflow")


def cuda_built() -> bool:
    """Return whether this TensorFlow has CUDA, so that tensors on a GPU can be passed."""
    return bool(tf.test.is_built_with_cuda())


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Return whether TensorFlow sees a GPU. ext_base_name, verbose: nothing depends on them."""
    return bool(tf.config.list_physical_devices("GPU"))
