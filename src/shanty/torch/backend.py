"""The name `mpi`: brings `init_process_group("mpi")` and `new_group` to an `MPIGroup`.

torch.distributed knows the backend "mpi" already: it takes rank and world size from it, needs no
store, and calls `ProcessGroupMPI.create(ranks)`, which only its MPI builds have. This module puts
that class there. MPI itself starts with the first group, not with the import.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import set_debug_level
from torch.distributed import distributed_c10d as c10d

from shanty.collectives.world import check_world
from shanty.torch import patches

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.torch.group import MPIGroup

_GROUP_TAG = 0x5A17  # of Comm.Create_group, whose tags are apart from those of messages


class ProcessGroupMPI:
    """The stand-in for the C++ class of this name in torch's MPI builds."""

    @staticmethod
    def create(ranks: Sequence[int]) -> MPIGroup:
        """Make the group of these ranks of the world, in this order; of all of them when empty.

        Only members call it. Collective over them.
        Raises RuntimeError when the environment contradicts MPI's world, or MPI was initialised
        without the thread level that a communication thread needs.
        """
        limit = _time_limit(sys._getframe(1).f_locals)
        from shanty.torch.group import MPIGroup  # imports, and so starts, MPI

        world = _world()
        _avoid_detail()
        ranks = list(ranks)
        return MPIGroup.form(world, ranks, _GROUP_TAG, limit)


def register() -> None:
    """Make `mpi` an available backend of torch.distributed, for CPU and CUDA tensors."""
    setattr(c10d, "ProcessGroupMPI", ProcessGroupMPI)  # noqa: B010 (its stub declares a class)
    c10d._MPI_AVAILABLE = True
    dist.Backend.backend_capability["mpi"] = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
    patches.apply()


def _world() -> MPI.Intracomm:
    """MPI_COMM_WORLD, started if need be, with its thread level and size checked."""
    from mpi4py import MPI

    if not MPI.Is_initialized():  # mpi4py.rc.initialize = False
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise RuntimeError(
            "MPI was initialised without thread support, but the mpi backend communicates from a "
            "thread of its own: it needs MPI_THREAD_MULTIPLE (MPI_THREAD_SERIALIZED if the script "
            "calls MPI nowhere else). mpi4py asks for it by default; something changed "
            "mpi4py.rc.thread_level, or initialised MPI before mpi4py was imported."
        )
    world = MPI.COMM_WORLD
    whole = c10d.GroupMember.WORLD  # of another backend, beside which this one is used
    if whole is not None and (whole.rank(), whole.size()) != (world.rank, world.size):
        raise RuntimeError(
            f"PyTorch's world is initialised as rank {whole.rank()} of {whole.size()}, but MPI "
            f"reports rank {world.rank} of {world.size}: a group of the mpi backend would have "
            "other members. Pass MPI's rank and size to init_process_group."
        )
    library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
    check_world(world.rank, world.size, library, os.environ)
    return world


def _time_limit(caller: Mapping[str, object]) -> float:
    """Seconds. torch hands the time limit of a group to every backend but this one, so `create`
    reads it where torch has it: a local variable of the caller, or from torch 2.15 in its `opts`.
    """
    given = caller.get("timeout", getattr(caller.get("opts"), "timeout", None))
    if not isinstance(given, timedelta):
        given = c10d.default_pg_timeout
    return given.total_seconds()


def _avoid_detail() -> None:
    if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
        warnings.warn(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL crashes DistributedDataParallel with a backend written "
            "in Python (torch 2.13, segmentation fault); the mpi backend lowers it to INFO.",
            stacklevel=2,
        )
        set_debug_level(c10d.DebugLevel.INFO)
