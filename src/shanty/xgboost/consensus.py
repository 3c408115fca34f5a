"""Consensus: work that each rank does by itself ends in the same result, or error, on all.

Rank 0 receives the outcome of every rank, judges, and sends all the verdict. A rank whose work
fails says so at once, and the others learn it between two pieces of theirs, so that nobody works on
for minutes. A rank that waits sleeps: MPI's own waits take all of a core, which a rank that still
works may need. Ranks send heartbeats, at work and while they wait, so that no wait is for ever.
"""

from __future__ import annotations

import errno
import sys
import time
import zlib
from collections.abc import Callable
from socket import gethostname
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar
from zipfile import BadZipFile

from shanty.xgboost.errors import DataError, WorldError
from shanty.xgboost.share import room

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
V = TypeVar("V")

_OUTCOME, _STOP, _VERDICT, _ALIVE = 1, 2, 3, 4  # tags of messages
_NAPS = (0.0002, 0.005)  # seconds between two looks: at first, and at last
_LONG = 60  # seconds after which a rank says whom it waits for
_HEARTBEAT = 5  # seconds between two; less where the limit is low

_unheard: list[Any] = []  # what was sent to ranks that may never take it: MPI needs the memory


class Ranks:
    """The ranks that reach a consensus."""

    def __init__(self, mpi: MPI.Intracomm | None, timeout: int) -> None:
        self.mpi = mpi  # of our own messages; None where a rank is by itself
        self.rank = mpi.rank if mpi is not None else 0
        self.size = mpi.size if mpi is not None else 1
        self.timeout = timeout  # seconds without a heartbeat after which a rank is given up
        self.failed = False  # some ranks cannot be reached any more


class _Outcome(NamedTuple):
    what: str
    value: Any
    failed: bool
    lost: str  # why this rank cannot go on


class _Verdict(NamedTuple):
    value: Any
    stopped: bool
    lost: str


class Consensus:
    """Lets all ranks agree on the outcome of one piece of work. All ranks make one.

    what: the work, in words ("loading train.libsvm"), for messages about a rank that waits. The
    first word is the same on all ranks: where it is not, they have gone different ways.
    """

    def __init__(self, ranks: Ranks, what: str) -> None:
        self._ranks = ranks
        self._mpi = ranks.mpi if ranks.size > 1 else None
        self._rank, self._size = ranks.rank, ranks.size
        self._what = what
        self._outcomes: dict[int, Any] = {}
        self._stopped = False  # rank 0: it has told the others to stop; others: they were told
        self._lost = ""  # rank 0: why they cannot meet
        self._heard = self._beaten = time.monotonic()  # the last heartbeat; this rank's own

    def go_on(self) -> None:
        """Raises CalledOff where another rank has failed; for work, often, between two pieces."""
        if self._mpi is None:
            return
        self._beat()
        if self._rank == 0:
            self._take()
        elif not self._stopped and self._mpi.iprobe(source=0, tag=_STOP):
            self._mpi.recv(source=0, tag=_STOP)
            self._stopped = True
        if self._stopped:
            raise CalledOff

    def conclude(self, outcome: T, failed: bool, judge: Callable[[list[T]], V]) -> V:
        """Sends this rank's outcome; returns what `judge` makes of all ranks', in their order.

        failed: the others need not go on. The judge runs on rank 0 only, and raises nothing.
        WorldError, on all ranks, where one of them does not come, or comes from elsewhere.
        """
        if self._mpi is None:
            return judge([outcome])
        if self._rank == 0:
            return self._lead(outcome, failed, judge)
        mpi = self._mpi
        send = mpi.isend(_Outcome(self._what, outcome, failed, ""), 0, _OUTCOME)
        _unheard.append(send)
        self._wait(lambda: send.test()[0])
        self._wait(lambda: mpi.iprobe(source=0, tag=_VERDICT))
        _unheard.remove(send)
        answer = mpi.recv(source=0, tag=_VERDICT)
        if answer.stopped and not self._stopped:
            mpi.recv(source=0, tag=_STOP)
        self._hear()
        if answer.lost:
            self._fail(answer.lost)
        result: V = answer.value
        return result

    def leave(self, why: str) -> None:
        """Ends it for all ranks, at once: this one cannot go on."""
        self._ranks.failed = True
        if self._mpi is None:
            return
        why = f"rank {self._rank} on {gethostname()}: {why}"
        if self._rank == 0:
            self._stop()
            self._tell(None, why)
        else:
            _unheard.append(self._mpi.isend(_Outcome(self._what, None, True, why), 0, _OUTCOME))

    def _lead(self, outcome: T, failed: bool, judge: Callable[[list[T]], V]) -> V:
        """Rank 0's part of `conclude`."""
        self._outcomes[0] = outcome
        if failed:
            self._stop()
        try:
            self._wait(self._take)
        except WorldError as error:
            self._lost = str(error)
        if self._lost:
            self._tell(None, self._lost)
            self._fail(self._lost)
        verdict = judge([self._outcomes[rank] for rank in range(self._size)])
        sends = self._tell(verdict, "")
        self._wait(lambda: all(send.test()[0] for send in sends))
        for send in sends:
            _unheard.remove(send)
        return verdict

    def _tell(self, verdict: object, lost: str) -> list[Any]:
        assert self._mpi is not None
        answer = _Verdict(verdict, self._stopped, lost)
        sends = [self._mpi.isend(answer, rank, _VERDICT) for rank in range(1, self._size)]
        _unheard.extend(sends)
        return sends

    def _fail(self, why: str) -> NoReturn:
        self._ranks.failed = True
        raise WorldError(why)

    def _take(self) -> bool:
        """Rank 0: receives the outcomes that have come; tells whether none is waited for."""
        from mpi4py import MPI

        assert self._mpi is not None
        status = MPI.Status()
        while self._mpi.iprobe(source=MPI.ANY_SOURCE, tag=_OUTCOME, status=status):
            source = status.Get_source()
            told = self._mpi.recv(source=source, tag=_OUTCOME)
            self._heard = time.monotonic()
            self._outcomes[source] = told.value
            if told.what.split()[0] != self._what.split()[0]:
                self._lost = (
                    f"The ranks have gone different ways: rank 0 is at {self._what!r}, rank "
                    f"{source} at {told.what!r}. All ranks have to do the same, in one order."
                )
            self._lost = told.lost or self._lost
            if told.failed or self._lost:
                self._stop()
        return len(self._outcomes) == self._size or bool(self._lost)

    def _stop(self) -> None:
        assert self._mpi is not None
        if not self._stopped:
            self._stopped = True
            for rank in range(1, self._size):
                self._mpi.send(None, rank, _STOP)  # a few bytes, which MPI takes at once

    def _beat(self) -> None:
        """Sends a heartbeat, if it is time, to those who may wait for this rank."""
        assert self._mpi is not None
        now = time.monotonic()
        if now < self._beaten + min(_HEARTBEAT, self._ranks.timeout / 4):
            return
        self._beaten = now
        for rank in list(self._outcomes) if self._rank == 0 else [0]:
            if rank != self._rank:
                self._mpi.send(None, rank, _ALIVE)  # as in _stop

    def _hear(self) -> None:
        """Receives the heartbeats that have come."""
        from mpi4py import MPI

        assert self._mpi is not None
        while self._mpi.iprobe(source=MPI.ANY_SOURCE, tag=_ALIVE):
            self._mpi.recv(source=MPI.ANY_SOURCE, tag=_ALIVE)
            self._heard = time.monotonic()

    def _wait(self, done: Callable[[], object]) -> None:
        nap, told = _NAPS[0], time.monotonic() + _LONG
        self._heard = time.monotonic()
        while not done():
            time.sleep(nap)
            nap = min(nap * 1.2, _NAPS[1])
            self._hear()
            if self._rank == 0:
                self._beat()
            if time.monotonic() > told:
                told = float("inf")
                print(
                    f"shanty.xgboost: {self._what}: rank {self._rank} is still waiting for "
                    f"{self._missing()}. All ranks have to come here.",
                    file=sys.stderr,
                )
            if time.monotonic() > self._heard + self._ranks.timeout:
                self._fail(
                    f"{self._what}: in {self._ranks.timeout} seconds there was no sign of life of "
                    f"{self._missing()}. All ranks have to come here; where one needs longer, "
                    "init(timeout=…) gives it."
                )

    def _missing(self) -> str:
        if self._rank:
            return "rank 0, which hears all others first"
        ranks = [str(rank) for rank in range(self._size) if rank not in self._outcomes]
        return f"rank {', '.join(ranks)}"


class CalledOff(Exception):  # noqa: N818 (it is none of this rank)
    """Another rank has failed; `Consensus.go_on` raises it."""


# What reading data raises because of the data, or of the machine that it is on.
_FAILURES = (OSError, ValueError, EOFError, MemoryError, ImportError, BadZipFile, zlib.error)


def together(
    ranks: Ranks, what: str, work: Callable[[Consensus], T], judge: Callable[[list[T]], V]
) -> V:
    """Does `work` on all ranks, then `judge` on rank 0 what came of it; returns that everywhere.

    Where one of them fails because of the data, all ranks raise the same DataError. An error of
    another kind leaves the rank as it is, once the others have been told; to them it is a
    DataError. Work that takes long calls `go_on` of its consensus now and then; WorldError is for
    work after which this rank cannot go on.
    """
    consensus = Consensus(ranks, what)
    done: list[T] = []
    failure = ""
    own: list[Exception] = []
    try:
        done.append(work(consensus))
    except CalledOff:
        pass
    except WorldError as error:
        consensus.leave(str(error))
        raise
    except Exception as error:  # noqa: BLE001 (raised below, once the others know)
        failure = _spell(error) or type(error).__name__
        if not isinstance(error, _FAILURES):
            own.append(error)
            failure = f"{type(error).__name__}: {error}"
        if ranks.size > 1:
            failure = f"rank {ranks.rank} on {gethostname()}: {failure}"

    def decide(outcomes: list[tuple[list[T], str]]) -> tuple[list[V], str]:
        failures = [each for _, each in outcomes if each]
        if failures:
            more = f"\n(and {len(failures) - 3} more ranks)" if len(failures) > 3 else ""
            return [], "\n".join(failures[:3]) + more
        try:
            return [judge([each[0] for each, _ in outcomes])], ""
        except DataError as error:
            return [], str(error)
        except Exception as error:  # noqa: BLE001 (as above)
            own.append(error)
            return [], f"rank 0 on {gethostname()}: {type(error).__name__}: {error}"

    result, failure = consensus.conclude((done, failure), bool(failure), decide)
    if own:
        raise own[0]
    if failure:
        raise DataError(failure)
    return result[0]


def _spell(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        full = f". {room()}" if error.errno == errno.ENOSPC else ""
        return f"{error.strerror}{where}{full}"
    return str(error).partition("\nStack trace")[0].rstrip()  # XGBoost's, of addresses only
