"""`Watchdog`: asks the ranks of the world where they are, when one of them waits too long.

A rank answers from the thread that waits in MPI at that moment. A rank that computes has no such
thread, and answers only with SHANTY_CHECK=1, when the communication thread looks four times a
second. Importing this module starts MPI.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from mpi4py import MPI

_ASK, _REPLY, _LEFT, _WARNING = 1, 2, 3, 4  # tags
_PAUSE = 0.002  # seconds between looks for replies


class Activity(Enum):
    """The activity of a rank's program, as far as it matters to ranks that wait for it."""

    WAITS = "waits"  # it can go on only when others come
    RUNS = "runs"  # it computes, and may come yet
    FAILED = "failed"  # it gave up on an operation
    LEFT = "left"  # its script has ended


class State(NamedTuple):
    """The answer of one rank."""

    activity: Activity
    text: str  # in words, to follow "rank 3 "
    ended: int  # operations so far: if it has not moved, nothing has
    busy: bool = False  # whether an operation of it waits for others, whatever its program does


class Warned(NamedTuple):
    """The message of a rank that gives up a group; once received, the text names the rank."""

    text: str
    timed_out: bool  # whether ranks did not come in time


class Watchdog:
    """Asks ranks of the world for their state, and tells them this rank's. For any thread.

    comm: a communicator of its own over them. state: what to answer.
    """

    def __init__(self, comm: MPI.Intracomm, state: Callable[[], State]) -> None:
        self._comm = comm
        self._state = state
        self.ranks = comm.group.Translate_ranks(range(comm.size), MPI.COMM_WORLD.group)
        self._own = self.ranks[comm.rank]
        self._place = {rank: place for place, rank in enumerate(self.ranks)}
        self._sent: list[MPI.Request] = []
        self._left: dict[int, State] = {}
        self._warnings: dict[tuple[int, ...], Warned] = {}
        self._busy = threading.Lock()  # one asks at a time

    def free(self) -> None:
        """Give its communicator back to MPI; collective."""
        self._comm.Free()

    def answer(self) -> None:
        """Reply to the ranks that have asked, and do not wait."""
        if self._busy.acquire(blocking=False):  # else this rank asks just now, and replies too
            try:
                self._answer()
            finally:
                self._busy.release()

    def ask(self, ranks: Iterable[int], seconds: float) -> dict[int, State]:
        """Ask these ranks; returns the answers that came within `seconds`."""
        with self._busy:
            return self._ask_all(
                {rank for rank in ranks if rank in self._place} - {self._own}, seconds
            )

    def warn(self, members: Iterable[int], identity: tuple[int, ...], warning: Warned) -> None:
        """Tell the members of a group that this rank gave it up; identity: the group's."""
        with self._busy:
            self._tell(members, _WARNING, (identity, *warning))

    def warning(self, identity: tuple[int, ...]) -> Warned | None:
        """Return the message of another rank that gave up this group; None if none did."""
        for rank, (of, text, timed_out) in self._come(_WARNING):
            self._warnings[of] = Warned(f"rank {rank} {text}", timed_out)
        return self._warnings.get(identity) if self._warnings else None

    def leave(self) -> None:
        """Tell all others that this rank will take part in nothing any more."""
        with self._busy:
            text = "has left: its script has ended, or destroyed its groups"
            self._tell(self.ranks, _LEFT, tuple(State(Activity.LEFT, text, 0)))

    def part(self, seconds: float) -> None:
        """Before an end that takes the others along: let those that wait notice by themselves."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers = self.ask(self.ranks, 0.5)
            if not any(state.busy for state in answers.values()):
                return

    def _tell(self, ranks: Iterable[int], tag: int, words: object) -> None:
        places = (self._place[rank] for rank in ranks if rank in self._place)
        others = (place for place in places if place != self._comm.rank)
        self._sent += [self._comm.isend(words, place, tag) for place in others]

    def _come(self, tag: int) -> Iterator[tuple[int, Any]]:
        """The messages that have come: of which rank, and its words."""
        status = MPI.Status()
        while (message := self._comm.improbe(tag=tag)) is not None:
            words = message.recv(status)
            yield self.ranks[status.source], words

    def _answer(self) -> None:
        for rank, number in self._come(_ASK):
            self._tell([rank], _REPLY, (number, *self._state()))
        if self._sent:
            self._sent = [request for request in self._sent if not request.Test()]

    def _ask_all(self, asked: set[int], seconds: float) -> dict[int, State]:
        number = time.monotonic_ns()
        self._left |= {rank: State(*state) for rank, state in self._come(_LEFT)}
        answers = {rank: self._left[rank] for rank in asked if rank in self._left}
        asked -= set(answers)
        self._tell(asked, _ASK, number)
        end = time.monotonic() + seconds
        while asked and time.monotonic() < end:
            self._answer()
            before = len(asked)
            for rank, (of, *state) in self._come(_REPLY):
                if of == number:  # else an answer that came too late the last time
                    answers[rank] = State(*state)
                    asked.discard(rank)
            if len(asked) == before:
                time.sleep(_PAUSE)
        return answers


class Inquiry:
    """Finds out if the operation that this rank waits for can still complete.

    It cannot when one of its members has left or given up, nor when every rank of the world waits
    and nothing has moved between two looks. Asks every few seconds, with SHANTY_CHECK=1.
    """

    PERIOD = 1.5  # seconds
    PATIENCE = 2.0  # seconds for the answers

    def __init__(self, watchdog: Watchdog, members: Collection[int]) -> None:
        self._watchdog = watchdog
        self._members = members
        self._next = time.monotonic() + self.PERIOD
        self._before: dict[int, State] = {}

    def verdict(self) -> dict[int, State] | None:
        """Return the answers that leave no hope; None while there is some, or it is too early."""
        if time.monotonic() < self._next:
            return None
        answers = self._watchdog.ask(self._watchdog.ranks, self.PATIENCE)
        self._next = time.monotonic() + self.PERIOD
        before, self._before = self._before, answers
        gone = (Activity.LEFT, Activity.FAILED)
        if any(answers[rank].activity in gone for rank in self._members if rank in answers):
            return answers
        if len(answers) < MPI.COMM_WORLD.size - 1:  # or some are not asked at all
            return None
        if any(state.activity is Activity.RUNS for state in answers.values()):
            return None
        still = all(
            before.get(rank) and before[rank].ended == answers[rank].ended for rank in answers
        )
        return answers if still else None
