"""Process sets: some of the ranks, which communicate among themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from shanty.torch.hvd import registry

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.torch.hvd.registry import Ranks


class ProcessSet:
    """Some of the ranks, to be passed to the calls that only they shall make.

    Give it to `init(process_sets=[…])` or to `add_process_set`, on all ranks; until then it only
    says who is meant.

    process_set_id: its number; None while it is not registered. ranks: its members in ascending
    order. mpi_comm: the communicator that it was made from, if it was.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: MPI.Comm | None = None

    def __init__(self, ranks_or_comm: Sequence[int] | MPI.Comm) -> None:
        """Of these ranks, or of those of an mpi4py communicator. ValueError for anything else."""
        if isinstance(ranks_or_comm, Iterable):
            try:
                self.ranks = sorted(map(index, ranks_or_comm))
            except TypeError:
                raise ValueError(_NEEDS) from None
        elif _is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        else:
            raise ValueError(_NEEDS)

    def size(self) -> int | None:
        """How many ranks it has; None while it is not registered."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int | None:
        """This process's rank among its members; None while it is not registered.

        Calls that name a rank, such as `broadcast`, mean the rank in the world, not this one.
        Raises ValueError in a process that is not a member.
        """
        if self.process_set_id is None:
            return None
        members, here = self._members(), registry.current().place.rank
        if here not in members:
            raise ValueError(f"Rank {here} is not a member of {self}.")
        return members.index(here)

    def included(self) -> bool | None:
        """Whether this process is a member; None where the members are not known yet."""
        if self.ranks is None:
            return None
        return registry.current().place.rank in self.ranks

    def _members(self) -> Ranks:
        members = registry.current().ranks.get(self.process_set_id or 0)
        if members is None:
            raise ValueError(f"{self} has been removed, or was registered before hvd.shutdown().")
        return members

    def __str__(self) -> str:
        of = f"{self.mpi_comm}" if self.ranks is None else f"ranks {self.ranks}"
        number = "unregistered" if self.process_set_id is None else f"{self.process_set_id}"
        return f"ProcessSet({number}, {of})"

    __repr__ = __str__


_NEEDS = "A ProcessSet is made from a list of ranks or from an mpi4py communicator."

global_process_set = ProcessSet([])
"""All ranks. Its `ranks` are empty before `init`."""
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set, and return it. All ranks must call it, members or not.

    Raises ValueError on all ranks where they name different ones, or where there is one of the
    same ranks already.
    """
    world = registry.current()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    world.add([added], [members(added, world.comm)], f"add_process_set({spell(added)})")
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set; whether there was one to end. All ranks must call it, members or not.

    What is under way on it fails. The global process set stays, and so does one that is not
    registered: false, without asking the other ranks.
    Raises ValueError on all ranks where they name different ones.
    """
    number = process_set.process_set_id
    world = registry.current()
    if number is None or number == 0:
        return False
    return world.remove(number, f"remove_process_set({spell(process_set)})")


def members(process_set: ProcessSet, world: MPI.Comm) -> Ranks:
    """The ranks in `world` of its members. ValueError if some of them are not there."""
    if process_set.mpi_comm is None or process_set.ranks is not None:
        return tuple(process_set.ranks or ())
    from mpi4py import MPI

    if process_set.mpi_comm == MPI.COMM_NULL:
        raise ValueError("A ProcessSet was made from MPI.COMM_NULL, which has no ranks.")
    inner, outer = process_set.mpi_comm.Get_group(), world.Get_group()
    ranks = [int(each) for each in inner.Translate_ranks(None, outer)]
    inner.Free()
    outer.Free()
    if MPI.UNDEFINED in ranks:
        raise ValueError("A ProcessSet was made from a communicator with ranks outside the world.")
    return tuple(sorted(ranks))


def spell(process_set: ProcessSet) -> str:
    """What all ranks must name alike: its ranks, but not those of a communicator."""
    return "a communicator" if process_set.mpi_comm is not None else str(process_set.ranks)


def _is_communicator(thing: Any) -> bool:
    loaded = sys.modules.get("mpi4py.MPI")  # who has a communicator has loaded it
    return loaded is not None and isinstance(thing, loaded.Comm)
