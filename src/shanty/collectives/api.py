"""What Horovod's API has in common on all frameworks: its names, and how it begins."""

# ruff: noqa: F403, F405

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from shanty.collectives import process_sets as registry
from shanty.collectives import world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import *
from shanty.collectives.world import *

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.collectives.kernels import Kernels

__all__ = ["HorovodInternalError", *registry.__all__, *world.__all__]


class Init(Protocol):
    """Horovod's `init`."""

    def __call__(
        self,
        comm: Sequence[int] | MPI.Comm | None = None,
        process_sets: Sequence[ProcessSet] | str | None = None,
    ) -> None: ...


def array_kernels() -> Kernels:
    """Return the kernels for NumPy's arrays; starts MPI."""
    from shanty.collectives.array_kernels import KERNELS

    return KERNELS


def _nothing() -> None:
    """Do nothing."""


def init_of(
    name: str,
    kernels: Callable[[], Kernels] = array_kernels,
    before: Callable[[], None] = _nothing,
    begun: Callable[[], None] = _nothing,
) -> Init:
    """Return `init` for a front end. begun: called after the first `init`, not after later ones."""

    def init(
        comm: Sequence[int] | MPI.Comm | None = None,
        process_sets: Sequence[ProcessSet] | str | None = None,
    ) -> None:
        """Start, together with all other ranks. Once is enough; a second call changes nothing.

        comm: the ranks that take part: numbers in MPI's world, this rank's among them, or an
            mpi4py communicator, which is duplicated. None, or an empty list: all of MPI's world.
        process_sets: process sets to register, the same on all ranks. None or "dynamic": none;
            `add_process_set` can add them later.
        Raises ValueError when the ranks do not agree on the process sets, when a process set is
        invalid, or for a bad value of a HOROVOD_… variable; RuntimeError when MPI lacks
        MPI_THREAD_MULTIPLE, or has another world than the launcher promised.
        """
        before()
        if world.init(comm, process_sets, kernels(), name):
            begun()

    return init
