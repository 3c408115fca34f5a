"""Ranks that take the place of lost ranks, in an elastic run whose state is committed.

While ranks are missing, those that are left look at each commit what to do; the first of them
decides for all. They start the missing ranks (MPI_Comm_spawn), and train on while these import
what the script imports. A new rank says when it has come to `hvd.init()` and waits there, asleep.
At the next commit all meet: the world of the living and that of the new ranks become one
(MPI_Intercomm_merge), and the state goes from rank 0 to all.

If a rank is lost while others are on their way, these are given up: their way in leads through a
communicator that has a dead rank. Others are started at a later commit.

On one machine only: in the launcher of Open MPI 5.0.11, `connect_release` of pmix_server_dyn.c
writes behind an array where two of its daemons take part. It crashed in 1 of 9 runs on hosts, and
in none of 24 runs with four starts each on one machine.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from shanty.collectives import confirmation
from shanty.runtime.rundir import FAILING, JOINS, SEATS

if TYPE_CHECKING:
    from mpi4py import MPI

START = "SHANTY_RANK_START"
"""The variable with the command line of a rank, in a shell's words."""

_TAG = 0x5A19
_TRIES = 3  # starts without a rank that joined, until no more are made
_PAUSE = 5.0  # seconds after a start that failed
_LOOK = 0.01  # seconds between two looks of a rank that waits


class _Step(IntEnum):
    """What all ranks do at a commit, as the first of them says."""

    NONE = 0
    START = 1
    MEET = 2
    DROP = 3
    GIVE_UP = 4


class Regrowth:
    """What the ranks that are left know of the missing ones. The same on all, but for `_ready`."""

    def __init__(self, size: int, spares: int) -> None:
        self._size, self._spares = size, spares  # of the whole world
        self._meeting = False  # all ranks have agreed to meet the new ones
        self._way: MPI.Intercomm | None = None  # to the ranks that were started
        self._seats: list[int] = []  # theirs
        self._ready = self._failed = 0
        self._after = 0.0
        self._over = False
        self.has_started = is_joining()  # ranks, or was started itself

    def look(self, living: MPI.Intracomm, seats: Sequence[int]) -> bool:
        """Return whether all ranks are to meet new ones now. All must call it at the same point.

        seats: of these ranks. Raises MPI.Exception when another rank was lost.
        """
        if self._over or living.size >= self._size:
            return False
        word = array("i", [self._next() if living.rank == 0 else 0])
        living.Bcast(word)
        step = _Step(word[0])
        if step is _Step.START:
            free = sorted({*range(self._size + self._spares)}.difference(seats))
            self._seats = free[: self._size - living.size]
            self._start(living)
        elif step is _Step.DROP:
            self.drop()
        elif step is _Step.GIVE_UP:
            self._over = True
            if living.rank == 0:
                _say(f"{_TRIES} starts of lost ranks failed: training goes on with {living.size}")
        self._meeting = step is _Step.MEET
        return self._meeting

    def _next(self) -> _Step:
        from mpi4py import MPI

        if self._way is None:
            if time.monotonic() < self._after:
                return _Step.NONE
            return _Step.START if self._failed < _TRIES else _Step.GIVE_UP
        if confirmation.start_has_failed():
            return _Step.DROP
        try:
            while self._way.Iprobe(MPI.ANY_SOURCE, _TAG):
                self._way.Recv(array("i", [0]), MPI.ANY_SOURCE, _TAG)
                self._ready += 1
        except MPI.Exception:
            return _Step.DROP  # one of them was lost
        return _Step.MEET if self._ready == len(self._seats) else _Step.NONE

    def _start(self, living: MPI.Intracomm) -> None:
        from mpi4py import MPI

        word = f"{SEATS}{self._size + self._spares}:{','.join(map(str, self._seats))}"
        program, *words = shlex.split(os.environ[START].replace(SEATS, word, 1))
        info = MPI.Info.Create({"wdir": os.environ.get("PWD") or str(Path.cwd())})
        self.has_started = True
        confirmation.start_has_failed()  # of an earlier start
        try:
            self._way = living.Spawn(program, words, len(self._seats), info)
            self._way.Set_errhandler(MPI.ERRORS_RETURN)
            self._ready = 0
        except MPI.Exception as error:
            if living.rank == 0:
                _say(f"no rank could be started: {error}")
            self.drop()
        info.Free()

    @property
    def has_way(self) -> bool:
        """Return whether ranks were started that have not joined."""
        return self._way is not None

    def meet(self, living: MPI.Intracomm, seats: list[int]) -> MPI.Intracomm | None:
        """Return the world with the new ranks; None where they cannot join. Collective."""
        from mpi4py import MPI

        assert self._way is not None
        meeting, self._meeting = self._meeting, False
        if not meeting or self._way.Get_size() != living.size:  # a rank was lost meanwhile
            return None
        made = None
        with suppress(MPI.Exception):
            if living.rank == 0:
                for k in range(len(self._seats)):
                    self._way.Send(array("i", seats + self._seats), k, _TAG)
            made = self._way.Merge(high=False)
            made.Set_errhandler(MPI.ERRORS_RETURN)
        return made

    def drop(self) -> None:
        """Give up the ranks that were started and have not joined; others may be started later."""
        self._failed, self._after = self._failed + 1, time.monotonic() + _PAUSE
        self.dismiss()

    def dismiss(self) -> None:
        """Have the ranks ended that were started and have not joined.

        The controller does it: MPI_Comm_revoke never returns where they have all ended already.
        """
        if self._way is not None:
            confirmation.dismiss()
            self._way = None

    def joined(self, seats: list[int]) -> list[int]:
        """Note that the new ranks have joined those with these seats; returns all seats."""
        self._way, self._failed = None, 0
        return seats + self._seats


def _say(text: str) -> None:
    print(f"shanty: {text}", file=sys.stderr, flush=True)


def is_joining() -> bool:
    """Return whether this rank takes the place of a lost one, and has not joined yet."""
    return JOINS in os.environ


def join(size: int) -> tuple[MPI.Intracomm, list[int]]:
    """Return the world of `size` ranks with this one in it, and their seats.

    It waits until the others come to a commit, and ends this process where they do not want it any
    more.
    """
    from mpi4py import MPI

    way = MPI.Comm.Get_parent()
    for each in (MPI.COMM_WORLD, MPI.COMM_SELF, way):
        each.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        way.Send(array("i", [1]), 0, _TAG)
        while not way.Iprobe(0, _TAG):
            time.sleep(_LOOK)
        seats = array("i", [0] * size)
        way.Recv(seats, 0, _TAG)
        made = way.Merge(high=True)
    except MPI.Exception:
        _say("this rank was to take the place of a lost one, and is not needed any more")
        os.environ[FAILING] = "1"  # MPI_Finalize would wait for the others
        sys.exit(0)
    made.Set_errhandler(MPI.ERRORS_RETURN)
    return made, list(seats)
