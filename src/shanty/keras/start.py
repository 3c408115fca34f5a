"""Horovod's beginning, for Keras on whatever backend."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from shanty.collectives import world
from shanty.collectives.process_sets import ProcessSet
from shanty.keras.backends import backend

if TYPE_CHECKING:
    from mpi4py import MPI


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

    if backend() == "tensorflow":
        import_module("shanty.tensorflow.cluster").forget()
    world.init(comm, process_sets, KERNELS, "shanty.keras")


def cuda_built() -> bool:
    """Return whether the backend has CUDA, so that its tensors on a GPU can be passed."""
    if backend() == "tensorflow":
        return bool(import_module("tensorflow").test.is_built_with_cuda())
    if backend() == "torch":
        return import_module("torch").version.cuda is not None
    return any(each.platform == "gpu" for each in import_module("jax").devices())
