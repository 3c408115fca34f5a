"""Consensus: work that each rank does by itself ends in the same result, or error, on all.

Rank 0 receives the outcome of every rank, combines them, and sends the verdict to all. A rank whose
work fails reports that at once; the others see it between two pieces of their work, so that none of
them goes on for minutes. A rank that waits sleeps: MPI's own waits take a whole core, which a rank
that still works may need. Ranks send heartbeats while they work and while they wait, so every wait
has a bound.
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

from shanty._departures import Departures
from shanty.xgboost.errors import DataError, WorldError
from shanty.xgboost.share import room

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
V = TypeVar("V")

_OUTCOME, _STOP, _VERDICT, _ALIVE = 1, 2, 3, 4  # tags of messages
_NAPS = (0.0002, 0.005)  # seconds between two looks: at first, and at last
_PARTING = 4  # seconds in which a rank that has left may end the run with its error
_LONG = 60  # seconds after which a rank says which ranks it waits for
_HEARTBEAT = 5  # seconds between two; less where the limit is low

_pending: list[Any] = []  # sends that may never be received: MPI needs their memory


class Ranks:
    """The ranks that reach a consensus."""

    def __init__(self, mpi: MPI.Intracomm | None, timeout: int) -> None:
        self.mpi = mpi  # for these messages only; None where a rank is alone
        self.rank = mpi.rank if mpi is not None else 0
        self.size = mpi.size if mpi is not None else 1
        self.timeout = timeout  # seconds without a heartbeat after which a rank is given up
        self.failed = False  # some ranks can no longer be reached
        self.departures = Departures(mpi if self.size > 1 else None)


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

    what: describes the work ("loading train.libsvm") in messages about a rank that waits. If the
    first words differ between ranks, the ranks are at different calls.
    """

    def __init__(self, ranks: Ranks, what: str) -> None:
        self._ranks = ranks
        self._mpi = ranks.mpi if ranks.size > 1 else None
        self._rank, self._size = ranks.rank, ranks.size
        self._what = what
        self._outcomes: dict[int, Any] = {}
        self._stopped = False  # rank 0: has sent _STOP to the others; others: have received it
        self._lost = ""  # rank 0: why no consensus is possible
        self._seen = self._beaten = time.monotonic()  # the last heartbeat received; the last sent

    def go_on(self) -> None:
        """Raises CalledOff if another rank has failed. Work calls it often, between two pieces."""
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

    def conclude(self, outcome: T, failed: bool, combine: Callable[[list[T]], V]) -> V:
        """Sends this rank's outcome; returns what `combine` makes of all outcomes, in rank order.

        failed: the others need not go on. `combine` runs on rank 0 only and raises nothing.
        Raises WorldError on all ranks if one does not arrive, or arrives with other work.
        """
        if self._mpi is None:
            return combine([outcome])
        if self._rank == 0:
            return self._lead(outcome, failed, combine)
        mpi = self._mpi
        send = mpi.isend(_Outcome(self._what, outcome, failed, ""), 0, _OUTCOME)
        _pending.append(send)
        self._wait(lambda: send.test()[0])
        self._wait(lambda: mpi.iprobe(source=0, tag=_VERDICT))
        _pending.remove(send)
        answer = mpi.recv(source=0, tag=_VERDICT)
        if answer.stopped and not self._stopped:
            mpi.recv(source=0, tag=_STOP)
        self._receive_beats()
        if answer.lost:
            self._fail(answer.lost)
        result: V = answer.value
        return result

    def leave(self, why: str) -> None:
        """Ends the work on all ranks at once, because this rank cannot go on."""
        self._ranks.failed = True
        if self._mpi is None:
            return
        why = f"rank {self._rank} on {gethostname()}: {why}"
        if self._rank == 0:
            self._stop()
            self._tell(None, why)
        else:
            _pending.append(self._mpi.isend(_Outcome(self._what, None, True, why), 0, _OUTCOME))

    def _lead(self, outcome: T, failed: bool, combine: Callable[[list[T]], V]) -> V:
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
        verdict = combine([self._outcomes[rank] for rank in range(self._size)])
        sends = self._tell(verdict, "")
        self._wait(lambda: all(send.test()[0] for send in sends))
        for send in sends:
            _pending.remove(send)
        return verdict

    def _tell(self, verdict: object, lost: str) -> list[Any]:
        assert self._mpi is not None
        answer = _Verdict(verdict, self._stopped, lost)
        sends = [self._mpi.isend(answer, rank, _VERDICT) for rank in range(1, self._size)]
        _pending.extend(sends)
        return sends

    def _fail(self, why: str) -> NoReturn:
        self._ranks.failed = True
        raise WorldError(why)

    def _take(self) -> bool:
        """Rank 0: receives the outcomes that have arrived; returns whether none is missing."""
        from mpi4py import MPI

        assert self._mpi is not None
        status = MPI.Status()
        while self._mpi.iprobe(source=MPI.ANY_SOURCE, tag=_OUTCOME, status=status):
            source = status.Get_source()
            found = self._mpi.recv(source=source, tag=_OUTCOME)
            self._seen = time.monotonic()
            self._outcomes[source] = found.value
            if found.what.split()[0] != self._what.split()[0]:
                self._lost = (
                    f"The ranks are at different calls: rank 0 is at {self._what!r}, rank {source} "
                    f"at {found.what!r}. All ranks must make the same calls in the same order."
                )
            self._lost = found.lost or self._lost
            if found.failed or self._lost:
                self._stop()
        return len(self._outcomes) == self._size or bool(self._lost)

    def _stop(self) -> None:
        assert self._mpi is not None
        if not self._stopped:
            self._stopped = True
            for rank in range(1, self._size):
                self._mpi.send(None, rank, _STOP)  # a few bytes, which MPI buffers

    def _beat(self) -> None:
        """Sends a heartbeat, if one is due, to the ranks that may wait for this one."""
        assert self._mpi is not None
        now = time.monotonic()
        if now < self._beaten + min(_HEARTBEAT, self._ranks.timeout / 4):
            return
        self._beaten = now
        for rank in list(self._outcomes) if self._rank == 0 else [0]:
            if rank != self._rank:
                self._mpi.send(None, rank, _ALIVE)  # as in _stop

    def _receive_beats(self) -> None:
        """Receives the heartbeats that have arrived."""
        from mpi4py import MPI

        assert self._mpi is not None
        while self._mpi.iprobe(source=MPI.ANY_SOURCE, tag=_ALIVE):
            self._mpi.recv(source=MPI.ANY_SOURCE, tag=_ALIVE)
            self._seen = time.monotonic()

    def _wait(self, done: Callable[[], object]) -> None:
        nap, report_at = _NAPS[0], time.monotonic() + _LONG
        leaves_at = 0.0
        self._seen = time.monotonic()
        while not done():
            time.sleep(nap)
            nap = min(nap * 1.2, _NAPS[1])
            self._receive_beats()
            if self._rank == 0:
                self._beat()
            left = self._ranks.departures.reason()
            if left and time.monotonic() > (leaves_at := leaves_at or time.monotonic() + _PARTING):
                self._fail(f"{left}. It made no more calls together with the other ranks.")
            if time.monotonic() > report_at:
                report_at = float("inf")
                print(
                    f"shanty.xgboost: {self._what}: rank {self._rank} is still waiting for "
                    f"{self._missing()}. All ranks have to make this call.",
                    file=sys.stderr,
                )
            if time.monotonic() > self._seen + self._ranks.timeout:
                self._fail(
                    f"{self._what}: no heartbeat from {self._missing()} for {self._ranks.timeout} "
                    "seconds. All ranks have to make this call. If a rank needs longer, set "
                    "init(timeout=…)."
                )

    def _missing(self) -> str:
        if self._rank:
            return "rank 0, which waits for all others"
        ranks = [str(rank) for rank in range(self._size) if rank not in self._outcomes]
        return f"rank {', '.join(ranks)}"


class CalledOff(Exception):  # noqa: N818 (not an error of this rank)
    """Another rank has failed; raised by `Consensus.go_on`."""


# What reading raises because of the data, or of the machine that holds the data.
_FAILURES = (OSError, ValueError, EOFError, MemoryError, ImportError, BadZipFile, zlib.error)


def together(
    ranks: Ranks, what: str, work: Callable[[Consensus], T], combine: Callable[[list[T]], V]
) -> V:
    """Does `work` on all ranks, combines the results on rank 0, returns the combination on all.

    If one rank fails because of the data, all ranks raise the same DataError. An error of another
    kind is raised unchanged on its rank, after it has been reported to the others, which raise a
    DataError. Long work calls `go_on` of its consensus from time to time. Work raises WorldError if
    this rank cannot go on afterwards.
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
            return [combine([each[0] for each, _ in outcomes])], ""
        except DataError as error:
            return [], str(error)
        except Exception as error:  # noqa: BLE001 (as above)
            own.append(error)
            return [], f"rank 0 on {gethostname()}: {type(error).__name__}: {error}"

    try:
        result, failure = consensus.conclude((done, failure), bool(failure), decide)
    except WorldError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "mpi4py":
            raise
        ranks.failed = True
        raise WorldError(f"{what}: another rank was lost ({error})") from error
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
    return str(error).partition("\nStack trace")[0].rstrip()  # XGBoost's, of addresses
