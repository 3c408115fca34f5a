"""Process sets: some of the ranks, which communicate among themselves; and the world of them all.

The `World` is what `world.init` has made: its process sets, and the negotiator of each that this
rank is in. Importing this module starts no MPI.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, TypeVar

from shanty.collectives.errors import ArgumentError, HorovodInternalError
from shanty.collectives.exchange import exchange
from shanty.collectives.settings import Settings
from shanty.collectives.timeline import Timeline

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.collectives.kernels import Kernels
    from shanty.collectives.negotiation import Negotiator

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

Ranks = tuple[int, ...]
Value = TypeVar("Value")

NOT_INITIALIZED = "hvd.init() has not been called, or hvd.shutdown() has been since."

_NEEDS = "A ProcessSet is made from a list of ranks or from an mpi4py communicator."

Seat = tuple[int, int]
"""Local rank, and how many ranks there are on that host."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The place of a rank among the others: the answers of rank(), size() and similar functions.

    local_rank, local_size: among the ranks of the same host.
    cross_rank, cross_size: among the ranks of all hosts that have the same local rank.
    homogeneous: whether every host has the same number of ranks.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


def topology(rank: int, seats: Sequence[Seat]) -> Topology:
    """Return the topology of `rank` in a world whose ranks have these seats, in their order."""
    local_rank, local_size = seats[rank]
    peers = [other for other, seat in enumerate(seats) if seat[0] == local_rank]
    return Topology(
        rank=rank,
        size=len(seats),
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=peers.index(rank),
        cross_size=len(peers),
        homogeneous=len({size for _, size in seats}) == 1,
    )


def told(rank: int, size: int, env: Mapping[str, str]) -> Seat | None:
    """Return this rank's seat as the run's variables have it; None where they are unset, or belong
    to another world: an outer one, or one of which this is only a part.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    words = [env.get(name, "") for name in names]
    if not all(word.isascii() and word.isdigit() for word in words):
        return None
    said_rank, said_size, local_rank, local_size = map(int, words)
    if (said_rank, said_size) != (rank, size) or not local_rank < local_size <= size:
        return None
    return local_rank, local_size


class ProcessSet:
    """Some of the ranks, passed to calls that only these ranks make.

    Pass it to `init(process_sets=[…])` or to `add_process_set`, on all ranks; until then it only
    names the ranks.

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
        # Who has a communicator has loaded its module.
        elif (mpi := sys.modules.get("mpi4py.MPI")) and isinstance(ranks_or_comm, mpi.Comm):
            self.mpi_comm = ranks_or_comm
        else:
            raise ValueError(_NEEDS)

    def size(self) -> int | None:
        """Return how many ranks it has; None while it is not registered."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int | None:
        """Return this process's rank among its members; None while it is not registered.

        Calls that name a rank, such as `broadcast`, mean the rank in the world, not this one.
        Raises ValueError in a process that is not a member.
        """
        if self.process_set_id is None:
            return None
        members, here = self._members(), current().topology.rank
        if here not in members:
            raise ValueError(f"Rank {here} is not a member of {self}.")
        return members.index(here)

    def included(self) -> bool | None:
        """Return whether this process is a member; None where the members are not known yet."""
        if self.ranks is None:
            return None
        return current().topology.rank in self.ranks

    def _members(self) -> Ranks:
        members = current().ranks.get(self.process_set_id or 0)
        if members is None:
            raise ValueError(f"{self} has been removed, or was registered before hvd.shutdown().")
        return members

    def __str__(self) -> str:
        of = f"{self.mpi_comm}" if self.ranks is None else f"ranks {self.ranks}"
        number = "unregistered" if self.process_set_id is None else f"{self.process_set_id}"
        return f"ProcessSet({number}, {of})"

    __repr__ = __str__


global_process_set = ProcessSet([])
"""All ranks. Its `ranks` are empty before `init`."""
global_process_set.process_set_id = 0

negotiators: dict[int, Negotiator] = {}
"""Negotiators by the number of the process set: of those that this rank is a member of."""


class World:
    """One time between `init` and `shutdown`.

    comm: of its own, for `exchange` and to make others from. ranks: members of each process set
    by its number; 0 has all. held: the user's objects of each.
    """

    def __init__(
        self, comm: MPI.Intracomm, topology: Topology, settings: Settings, kernels: Kernels
    ) -> None:
        self.comm = comm
        self.topology = topology
        self.settings = settings
        self.kernels = kernels
        self.ranks: dict[int, Ranks] = {0: tuple(range(topology.size))}
        self.held: dict[int, list[ProcessSet]] = {}
        self.timeline: Timeline | None = None
        self._next = 1  # numbers are not given twice, so that an old object names no new set
        self._turn = threading.Lock()

    def form(self, number: int) -> None:
        """Start the negotiator of a process set. Collective over its members."""
        from shanty.collectives.negotiation import Negotiator  # imports, and so starts, MPI

        ranks = self.ranks[number]
        if self.topology.rank in ranks:
            made = Negotiator(self.comm, ranks, self.settings, number, self.kernels)
            made.timeline = self.timeline
            negotiators[number] = made

    def add(self, process_sets: Sequence[ProcessSet], wanted: Sequence[Ranks], call: str) -> None:
        """Form process sets. Collective over the world, which must agree on them.

        wanted: the members of each, as this rank knows them. call: what the ranks compare.
        Raises ValueError on every rank when the ranks do not agree, or a set cannot be.
        """
        with self._turn:
            asked = exchange(self.comm, (call, list(wanted)), call, self.settings)
            planned = plan(agreed(asked), self.topology.size, self.ranks.values())
            numbers: dict[Ranks, int] = {}
            for ranks in planned:
                numbers[ranks] = self._next
                self.ranks[self._next] = ranks
                self._next += 1
            for number in numbers.values():
                self.form(number)
            for each, ranks in zip(process_sets, wanted, strict=True):
                self.hold(each, numbers[ranks])

    def hold(self, process_set: ProcessSet, number: int) -> None:
        """Make `process_set` the one of that number."""
        process_set.process_set_id = number
        process_set.ranks = list(self.ranks[number])
        self.held.setdefault(number, []).append(process_set)

    def remove(self, number: int, call: str) -> bool:
        """End a process set; returns whether there was one. Collective over the world.

        Raises ValueError on every rank when they do not all name the same one.
        """
        with self._turn:
            agreed(exchange(self.comm, (call, [number]), call, self.settings))
            if number not in self.ranks:
                return False
            del self.ranks[number]
            self._let_go(number)
            negotiator = negotiators.pop(number, None)
            if negotiator is not None:
                negotiator.stop()
            return True

    def trace(self, timeline: Timeline | None) -> None:
        """Have all negotiators write to this timeline from now on, and end the one before."""
        before, self.timeline = self.timeline, timeline
        for negotiator in negotiators.values():
            negotiator.timeline = timeline
        if before is not None:
            before.close()

    def end(self) -> None:
        """Stop all negotiators and give back what the world held."""
        for number in sorted(negotiators, reverse=True):
            negotiators.pop(number).stop()
        for number in list(self.held):
            self._let_go(number)
        self.trace(None)
        self.comm.Free()

    def _let_go(self, number: int) -> None:
        for each in self.held.pop(number, []):
            each.process_set_id = None


standing: World | None = None
"""The world, if there is one."""


def current() -> World:
    """Return the world; ValueError where there is none."""
    if standing is None:
        raise ValueError(NOT_INITIALIZED)
    return standing


def negotiator(process_set: ProcessSet) -> Negotiator:
    """Return the negotiator of a process set.

    Raises HorovodInternalError before `init`, ValueError where the process set is not registered
    or this rank is not in it.
    """
    number = process_set.process_set_id
    found = negotiators.get(number) if number is not None else None
    if found is not None:
        return found
    if standing is None:
        raise HorovodInternalError(NOT_INITIALIZED)
    if number not in standing.ranks:
        raise ArgumentError(
            f"{process_set} is not registered. Pass it to hvd.init(process_sets=[…]) or to "
            "hvd.add_process_set first, on all ranks."
        )
    raise ArgumentError(f"Rank {standing.topology.rank} is not a member of {process_set}.")


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set, and return it. All ranks must call it, members or not.

    Raises ValueError on all ranks where they name different ones, or where there is one of the
    same ranks already.
    """
    world = current()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    world.add([added], [members(added, world.comm)], f"add_process_set({spell(added)})")
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set; returns whether there was one. All ranks must call it, members or not.

    What is under way on it fails. For the global process set, and for a set that is not registered,
    it returns false without asking the other ranks.
    Raises ValueError on all ranks where they name different ones.
    """
    number = process_set.process_set_id
    world = current()
    if number is None or number == 0:
        return False
    return world.remove(number, f"remove_process_set({spell(process_set)})")


def members(process_set: ProcessSet, world: MPI.Comm) -> Ranks:
    """Return the ranks in `world` of its members. ValueError if some of them are not there."""
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
    """Return what all ranks must name alike: its ranks, but not those of a communicator."""
    return "a communicator" if process_set.mpi_comm is not None else str(process_set.ranks)


# ---- what the ranks agree on, without MPI ------------------------------------------------------


def agreed(asked: Sequence[tuple[str, Value]]) -> list[Value]:
    """Return what each rank passed, when all have made the same call; else ValueError."""
    first = asked[0][0]
    for rank, (call, _) in enumerate(asked):
        if call != first:
            raise ValueError(
                f"The ranks do not agree: rank 0 called {first}, rank {rank} {call}. "
                "All ranks must name the same process sets in the same order."
            )
    return [passed for _, passed in asked]


def plan(asked: Sequence[Sequence[Ranks]], size: int, existing: Iterable[Ranks]) -> list[Ranks]:
    """Return the process sets to form, in order, from the list of those that each rank wants.

    Where a list has communicators, the ranks may want different sets in the same place of it.
    size: of the world. existing: sets that are there already.
    Raises ValueError for a set that cannot be.
    """
    taken = set(existing)
    planned: list[Ranks] = []
    for wishes in zip(*asked, strict=True):
        for ranks in sorted(set(wishes)):
            _check(ranks, size)
            if ranks in taken:
                whole = ": hvd.global_process_set" if len(ranks) == size else ""
                raise ValueError(f"There is already a process set of ranks {list(ranks)}{whole}.")
            taken.add(ranks)
            planned.append(ranks)
    return planned


def _check(ranks: Ranks, size: int) -> None:
    named = f"Invalid process set of ranks {list(ranks)}:"
    if not ranks:
        raise ValueError(f"{named} it has no member.")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{named} a rank is named twice.")
    if not 0 <= ranks[0] <= ranks[-1] < size:
        raise ValueError(f"{named} the world has the ranks 0 to {size - 1}.")
