"""How ranks tell each other what came of work that each does by itself, and may fail at.

Rank 0 hears the outcome of every rank, judges, and tells all. A rank whose work fails says so at
once, and the others hear of it between two pieces of theirs, so that nobody works on for minutes.
Whoever waits sleeps: MPI's own waits take all of a core, which a rank that still works may need.
"""

from __future__ import annotations

import errno
import sys
import time
import zlib
from collections.abc import Callable
from socket import gethostname
from typing import Any, TypeVar
from zipfile import BadZipFile

from shanty.xgboost.errors import DataError
from shanty.xgboost.spill import room
from shanty.xgboost.world import World

T = TypeVar("T")
V = TypeVar("V")

_OUTCOME, _STOP, _VERDICT = 1, 2, 3  # tags of messages
_NAPS = (0.0002, 0.005)  # seconds between two looks: at first, and at last
_LONG = 60  # seconds after which rank 0 says whom it waits for


class Meeting:
    """One piece of work of all ranks, and its end, at which they meet. All ranks make one.

    what: the work, in words ("loading train.libsvm"), for whoever wonders what is waited for.
    """

    def __init__(self, world: World, what: str) -> None:
        self._comm = world.comm if world.size > 1 else None
        self._rank, self._size = world.rank, world.size
        self._what = what
        self._outcomes: dict[int, Any] = {}
        self._stopped = False  # rank 0: it has told the others to stop; others: they were told

    def called_off(self) -> bool:
        """Whether some rank has failed, so that going on is in vain. For looks now and then."""
        if self._comm is None or self._stopped:
            return self._stopped
        if self._rank == 0:
            self._take()
        elif self._comm.iprobe(source=0, tag=_STOP):
            self._comm.recv(source=0, tag=_STOP)
            self._stopped = True
        return self._stopped

    def conclude(self, outcome: T, failed: bool, judge: Callable[[list[T]], V]) -> V:
        """Tell this rank's outcome, and hear what `judge` makes of all ranks', in their order.

        failed: the others need not go on. The judge runs on rank 0 only, and must not raise.
        """
        if self._comm is None:
            return judge([outcome])
        if self._rank == 0:
            self._outcomes[0] = outcome
            if failed:
                self._stop()
            self._wait(self._all_there)
            verdict = judge([self._outcomes[rank] for rank in range(self._size)])
            sends = [
                self._comm.isend((verdict, self._stopped), rank, _VERDICT)
                for rank in range(1, self._size)
            ]
            self._wait(lambda: all(send.test()[0] for send in sends))
            return verdict
        comm = self._comm
        send = comm.isend((outcome, failed), 0, _OUTCOME)
        self._wait(lambda: send.test()[0])
        self._wait(lambda: comm.iprobe(source=0, tag=_VERDICT))
        answer, stopped = comm.recv(source=0, tag=_VERDICT)
        if stopped and not self._stopped:
            comm.recv(source=0, tag=_STOP)
        result: V = answer
        return result

    def _all_there(self) -> bool:
        self._take()
        return len(self._outcomes) == self._size

    def _take(self) -> None:
        """Rank 0: take the outcomes that have come."""
        from mpi4py import MPI

        assert self._comm is not None
        status = MPI.Status()
        while self._comm.iprobe(source=MPI.ANY_SOURCE, tag=_OUTCOME, status=status):
            source = status.Get_source()
            self._outcomes[source], failed = self._comm.recv(source=source, tag=_OUTCOME)
            if failed:
                self._stop()

    def _stop(self) -> None:
        assert self._comm is not None
        if not self._stopped:
            self._stopped = True
            for rank in range(1, self._size):
                self._comm.send(None, rank, _STOP)  # a few bytes, which MPI takes at once

    def _wait(self, done: Callable[[], object]) -> None:
        nap, told = _NAPS[0], time.monotonic() + _LONG
        while not done():
            time.sleep(nap)
            nap = min(nap * 1.2, _NAPS[1])
            if self._rank == 0 and time.monotonic() > told:
                told = float("inf")
                missing = ", ".join(
                    str(rank) for rank in range(self._size) if rank not in self._outcomes
                )
                print(
                    f"shanty.xgboost: {self._what}: still waiting for rank {missing}. "
                    "All ranks have to come here.",
                    file=sys.stderr,
                )


class CalledOff(Exception):  # noqa: N818 (it is none of this rank)
    """Another rank has failed; raised by work that looks out for it."""


# What reading data raises because of the data, or of the machine that it is on.
_FAILURES = (OSError, ValueError, EOFError, MemoryError, ImportError, BadZipFile, zlib.error)


def together(
    world: World, what: str, work: Callable[[Meeting], T], judge: Callable[[list[T]], V]
) -> V:
    """Do `work` on all ranks, then `judge` on rank 0 what came of it, and return that everywhere.

    Where one of them fails because of the data, all ranks raise the same DataError. Work that
    takes long asks its meeting whether it was called off, and raises CalledOff then.
    """
    meeting = Meeting(world, what)
    done: list[T] = []
    failure = ""
    try:
        done.append(work(meeting))
    except CalledOff:
        pass
    except _FAILURES as error:
        failure = _spell(error) or type(error).__name__
        if world.size > 1:
            failure = f"rank {world.rank} on {gethostname()}: {failure}"

    def decide(outcomes: list[tuple[list[T], str]]) -> tuple[list[V], str]:
        failures = [each for _, each in outcomes if each]
        if failures:
            more = f"\n(and {len(failures) - 3} more ranks)" if len(failures) > 3 else ""
            return [], "\n".join(failures[:3]) + more
        try:
            return [judge([each[0] for each, _ in outcomes])], ""
        except DataError as error:
            return [], str(error)

    result, failure = meeting.conclude((done, failure), bool(failure), decide)
    if failure:
        raise DataError(failure)
    return result[0]


def _spell(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        full = f". {room()}" if error.errno == errno.ENOSPC else ""
        return f"{error.strerror}{where}{full}"
    return str(error)
