"""The world that `init` has made: its process sets, and the engine of each that this rank is in.

Importing this module starts no MPI.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from shanty.torch.hvd import agreement
from shanty.torch.hvd.requests import HorovodInternalError

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.torch.hvd.engine import Engine
    from shanty.torch.hvd.place import Place
    from shanty.torch.hvd.process_sets import ProcessSet
    from shanty.torch.hvd.settings import Settings
    from shanty.torch.hvd.timeline import Timeline

Ranks = tuple[int, ...]
Value = TypeVar("Value")

NOT_INITIALIZED = "hvd.init() has not been called, or hvd.shutdown() has been since."

engines: dict[int, Engine] = {}
"""By the number of a process set: only of those that this rank is a member of."""


class World:
    """One time between `init` and `shutdown`.

    comm: of its own, for `agreement` and to make others from. ranks: members of each process set
    by its number; 0 has all. held: the user's objects of each.
    """

    def __init__(self, comm: MPI.Intracomm, place: Place, settings: Settings) -> None:
        self.comm = comm
        self.place = place
        self.settings = settings
        self.ranks: dict[int, Ranks] = {0: tuple(range(place.size))}
        self.held: dict[int, list[ProcessSet]] = {}
        self.timeline: Timeline | None = None
        self._next = 1  # numbers are not given twice, so that an old object names no new set
        self._turn = threading.Lock()

    def form(self, number: int) -> None:
        """Start the engine of a process set. Collective over its members; nothing for others."""
        from shanty.torch.hvd.engine import Engine

        ranks = self.ranks[number]
        if self.place.rank in ranks:
            engine = Engine.form(self.comm, ranks, self.settings, number)
            engine.timeline = self.timeline
            engines[number] = engine

    def add(self, process_sets: Sequence[ProcessSet], wanted: Sequence[Ranks], call: str) -> None:
        """Form process sets. Collective over the world, which must agree on them.

        wanted: the members of each, as this rank knows them. call: what the ranks compare.
        Raises ValueError on every rank when the ranks do not agree, or a set cannot be.
        """
        with self._turn:
            asked = agreement.exchange(self.comm, (call, list(wanted)), call, self.settings)
            planned = plan(agreed(asked), self.place.size, self.ranks.values())
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
        """End a process set; whether there was one. Collective over the world.

        Raises ValueError on every rank when they do not all name the same one.
        """
        with self._turn:
            agreed(agreement.exchange(self.comm, (call, [number]), call, self.settings))
            if number not in self.ranks:
                return False
            del self.ranks[number]
            self._let_go(number)
            engine = engines.pop(number, None)
            if engine is not None:
                engine.stop()
            return True

    def trace(self, timeline: Timeline | None) -> None:
        """Have all engines write to this timeline from now on, and end the one before."""
        before, self.timeline = self.timeline, timeline
        for engine in engines.values():
            engine.timeline = timeline
        if before is not None:
            before.close()

    def end(self) -> None:
        """Stop all engines and give back what the world held."""
        for number in sorted(engines, reverse=True):
            engines.pop(number).stop()
        for number in list(self.held):
            self._let_go(number)
        self.trace(None)
        self.comm.Free()

    def _let_go(self, number: int) -> None:
        for each in self.held.pop(number, []):
            each.process_set_id = None


_world: World | None = None


def current() -> World:
    """The world; ValueError where there is none."""
    if _world is None:
        raise ValueError(NOT_INITIALIZED)
    return _world


def standing() -> World | None:
    """The world, if there is one."""
    return _world


def stand(world: World | None) -> None:
    """Make this the world, or none."""
    global _world
    _world = world


def engine(process_set: ProcessSet) -> Engine:
    """The engine of a process set.

    Raises HorovodInternalError before `init`, ValueError where the process set is not registered
    or this rank is not in it.
    """
    number = process_set.process_set_id
    found = engines.get(number) if number is not None else None
    if found is not None:
        return found
    if _world is None:
        raise HorovodInternalError(NOT_INITIALIZED)
    if number not in _world.ranks:
        raise ValueError(
            f"{process_set} is not registered. Pass it to hvd.init(process_sets=[…]) or to "
            "hvd.add_process_set first, on all ranks."
        )
    raise ValueError(f"Rank {_world.place.rank} is not a member of {process_set}.")


# ---- what the ranks agree on, without MPI ------------------------------------------------------


def agreed(asked: Sequence[tuple[str, Value]]) -> list[Value]:
    """What each rank passed, when all have made the same call; else ValueError."""
    first = asked[0][0]
    for rank, (call, _) in enumerate(asked):
        if call != first:
            raise ValueError(
                f"The ranks do not agree: rank 0 called {first}, rank {rank} {call}. "
                "All ranks must name the same process sets in the same order."
            )
    return [passed for _, passed in asked]


def plan(asked: Sequence[Sequence[Ranks]], size: int, existing: Iterable[Ranks]) -> list[Ranks]:
    """The process sets to form, in order, from the list of those that each rank wants.

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
    named = f"A process set of ranks {list(ranks)} cannot be:"
    if not ranks:
        raise ValueError(f"{named} it has no member.")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{named} a rank is named twice.")
    if not 0 <= ranks[0] <= ranks[-1] < size:
        raise ValueError(f"{named} the world has the ranks 0 to {size - 1}.")
