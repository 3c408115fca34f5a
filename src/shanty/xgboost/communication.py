"""Starts and ends XGBoost's own communication between MPI's ranks.

XGBoost's ranks find each other through a *tracker*, a server that one of them runs. Afterwards they
communicate over TCP, and the tracker is idle. Here rank 0 runs it at the address that the run has
chosen for the host of rank 0, and the others learn the address through MPI. Each rank has the same
number in both worlds, which is checked.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shanty
from shanty.collectives import survivors
from shanty.collectives.world import promised_world
from shanty.runtime.rundir import FAILING, RUN_DIR, SEAT
from shanty.xgboost.consensus import Ranks, together
from shanty.xgboost.errors import WorldError
from shanty.xgboost.installed import xgboost

if TYPE_CHECKING:
    from mpi4py import MPI

TIMEOUT = 300  # seconds; XGBoost's own default
_TRIES = 3
_JOINING = 20  # seconds that the tracker waits for one more rank; all start to join together
_PARTING = 10  # seconds that the tracker waits at most for all ranks to finish
_LOOK = 0.02  # seconds between two looks for a lost rank
_CALL, _TWICE = 5.0, 0.005  # seconds for a call to begin; between two looks at it
_STUCK = 20.0  # seconds in which a call has to fail once the connections are broken
_FUTURE = ["0x0", "0x80000000"]  # of futex(2): how a std::future of libstdc++ waits
_NO_TAG = 6  # of no message
_GRACE = 3  # seconds before a rank reports that it has lost another one
COLLECTIVE = "/collective/"  # in every error of XGBoost's communication: the source's folder

_lock = threading.RLock()
_standing: Communicator | None = None
_trackers: list[Any] = []  # of communication that has failed
_ended = False  # `finalize` was called, and `init` not since


class Communicator(Ranks):
    """XGBoost's communication from one `init` to its `finalize`, over MPI's ranks as they were."""

    def __init__(self, mpi: MPI.Intracomm | None, timeout: int = TIMEOUT) -> None:
        super().__init__(mpi, timeout)
        self._tracker: Any = None
        self._context: Any = None
        self._sockets: set[int] = set()  # XGBoost's, to the other ranks
        self._port = 0  # of the tracker

    def bring_up(self) -> None:
        """Starts XGBoost's communication; WorldError where that fails, on every rank."""
        if self.mpi is None or self.size == 1:
            return
        address = _address(self.mpi)
        failures: list[str] = []
        for _ in range(_TRIES):
            with _undisturbed():
                failures = self.mpi.allgather(self._join(self.mpi, address))
                if not any(failures):
                    return
                with suppress(xgboost.core.XGBoostError):
                    self.take_down()
        self.mpi.Free()
        reasons = [f"rank {rank}: {each}" for rank, each in enumerate(failures) if each]
        more = [f"(and {len(reasons) - 3} more ranks)"] if len(reasons) > 3 else []
        raise WorldError("\n".join(["XGBoost's ranks cannot be joined.", *reasons[:3], *more]))

    def _join(self, comm: MPI.Intracomm, address: str | None) -> str:
        """Joins XGBoost's ranks; returns why it failed, or nothing."""
        arguments: dict[str, Any] | None = None
        failure = ""
        if self.rank == 0:
            try:
                self._tracker = xgboost.tracker.RabitTracker(
                    n_workers=self.size,
                    host_ip=address,
                    sortby="task",
                    timeout=min(_JOINING, self.timeout),
                )
                self._tracker.start()
                arguments = self._tracker.worker_args()
            except Exception as error:  # noqa: BLE001 (the others must learn of any)
                failure = f"The tracker does not start: {_last_words(error)}"
        arguments = comm.bcast(arguments, 0)
        if arguments is None:
            return failure  # the others must not wait for it
        self._port = int(arguments["dmlc_tracker_port"])
        arguments |= {"dmlc_task_id": f"{self.rank:08d}", "dmlc_timeout": self.timeout}
        if survivors.is_elastic():
            arguments["dmlc_retry"] = 1  # after a loss the tracker may be gone
        self._context = xgboost.collective.CommunicatorContext(**arguments)
        before = _sockets()
        try:
            with _quiet():
                self._context.__enter__()
        except (AssertionError, xgboost.core.XGBoostError) as error:
            return _last_words(error)
        self._sockets = _sockets() - before
        found = xgboost.collective.get_rank(), xgboost.collective.get_world_size()
        if found != (self.rank, self.size):
            return (
                f"XGBoost counts this process as rank {found[0]} of {found[1]}, MPI as "
                f"rank {self.rank} of {self.size}. This should not happen: please report it."
            )
        return ""

    def check(self) -> None:
        """WorldError if ranks were lost, or are not joined in this thread."""
        if self.failed:
            raise WorldError(
                "XGBoost's ranks are no longer joined, since an error ended a training on some of "
                "them. To train again, call finalize() and then init() on all ranks."
            )
        if self.size > 1 and xgboost.collective.get_world_size() != self.size:
            raise WorldError(
                "XGBoost's ranks were joined in another thread, or the script has parted them "
                "itself: here this process would train alone. Call init(), load and train in one "
                "and the same thread."
            )

    def part(self) -> None:
        """Ends XGBoost's communication, once all ranks have come here.

        WorldError if a rank does not come. Without this meeting, the first rank to leave would take
        away what the others need to part. Where ranks were lost before, this one goes at once.
        """
        if self.failed:
            self.give_up()
            return
        try:
            if self.mpi is not None:
                together(self, "parting", lambda _: None, lambda _: None)
        except WorldError:
            self.give_up()
            raise
        self.take_down()
        if self.mpi is not None:
            self.mpi.Free()  # MPICH has 2,048 of them

    def give_up(self) -> None:
        """Ends XGBoost's communication at once: ranks that wait for this one get an error."""
        self.failed = True
        if self._tracker is not None:  # the others need it, to end theirs without tries
            _trackers.append(self._tracker)
            self._tracker = None
        for each in self._sockets:
            _let_reset(each)
        self._sockets.clear()
        with suppress(xgboost.core.XGBoostError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a tracker that is gone
            self.take_down()

    def rejoin(self) -> None:
        """Join the ranks that are left of an elastic run, after `give_up`."""
        Ranks.__init__(self, _own_mpi(), self.timeout)
        if self.mpi is not None:
            places = self.mpi.allgather(socket.gethostname())
            here = [rank for rank, each in enumerate(places) if each == places[self.rank]]
            survivors.renumber(self.rank, self.size, here.index(self.rank), len(here))
        self.bring_up()

    def break_connections(self) -> None:
        """Have XGBoost's calls fail that wait for another rank; from another thread."""
        nothing = os.open("/", getattr(os, "O_PATH", os.O_RDONLY))  # for any call an error
        for each in [*self._sockets]:
            with suppress(OSError), socket.socket(fileno=os.dup(each)) as connection:
                ports = connection.getsockname()[1], connection.getpeername()[1]
                if self._port not in ports:
                    _let_reset(each)
                    self._sockets.discard(each)  # another thread may do the same
                    connection.shutdown(socket.SHUT_RDWR)  # what waits for it wakes up
                    os.dup2(nothing, each, inheritable=False)
        os.close(nothing)

    def take_down(self) -> None:
        """Ends XGBoost's communication at once; XGBoostError where it has failed before."""
        context, self._context = self._context, None
        tracker, self._tracker = self._tracker, None
        try:
            with _undisturbed():
                if context is not None:
                    context.__exit__(None, None, None)
                if tracker is not None:
                    tracker.wait_for(timeout=_PARTING)
        finally:
            if tracker is not None:
                with suppress(xgboost.core.XGBoostError):  # of what failed before
                    tracker.free()


def init(timeout: int = TIMEOUT) -> None:
    """Joins XGBoost's ranks. All ranks call it; a second call changes nothing.

    All other functions here do it by themselves. timeout: seconds that a rank waits for another one
    within a collective operation, or where all ranks meet. Raises WorldError if MPI has been
    finalised or has another world than the launcher promised, if the ranks do not reach each other,
    and if they have been joined in another thread or by the script itself.
    """
    global _standing, _ended
    with _lock:
        if _standing is not None:
            _standing.check()
            return
        if xgboost.collective.is_distributed():
            raise WorldError(
                "The script has joined XGBoost's ranks itself. Leave that to shanty.xgboost: "
                "remove the tracker and the CommunicatorContext."
            )
        made = Communicator(_own_mpi(), timeout)
        made.bring_up()
        _standing, _ended = made, False
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)  # after mpi4py's, so that it runs before


def finalize() -> None:
    """Parts all ranks. From then on each rank is by itself, until `init` is called again."""
    global _standing, _ended
    with _lock:
        standing, _standing, _ended = _standing, None, True
        if standing is not None:
            standing.part()


def is_initialized() -> bool:
    """Returns whether XGBoost's ranks have been joined, and have not parted since."""
    return _standing is not None


@contextmanager
def communicator(timeout: int = TIMEOUT) -> Iterator[None]:
    """Keeps the ranks joined inside: calls `init`, and at the end `finalize` if `init` joined them.

    After an error inside the ranks do not part: the other ranks may be anywhere.
    """
    began = not is_initialized()
    init(timeout)
    with blaming_the_lost():
        yield
    if began:
        finalize()


def rank() -> int:
    """This process's number among all, MPI's and XGBoost's."""
    return _now().rank


def size() -> int:
    """The number of ranks."""
    return _now().size


def current() -> Communicator:
    """The communicator as it stands, started at the first call.

    After `finalize` a rank is by itself. WorldError in another thread than it was started in:
    XGBoost's is of one.
    """
    found = _now()
    found.check()
    return found


@contextmanager
def blaming_the_lost() -> Iterator[None]:
    """Turns XGBoost's error about a lost rank into a WorldError that says so.

    It waits a little first, so that the run can report the rank that failed first.
    """
    try:
        with watched(_standing):
            yield
    except xgboost.core.XGBoostError as error:
        if COLLECTIVE not in str(error):
            raise
        report_at, why = time.monotonic() + _GRACE, ""
        if _standing is not None:
            _standing.give_up()
            why = _standing.departures.wait(_GRACE)
        time.sleep(max(report_at - time.monotonic(), 0))
        if why:
            raise WorldError(f"{why}. The training cannot go on without it.") from None
        raise WorldError(
            "Another rank has ended or cannot be reached, or took longer than the time limit of "
            "init(timeout=…). The log of that rank says why. "
            f"XGBoost: {_last_words(error)}"
        ) from None


@contextmanager
def watched(ranks: Communicator | None) -> Iterator[None]:
    """Break XGBoost's connections when a rank of an elastic run is lost: it would wait for it."""
    mpi = ranks.mpi if ranks is not None and survivors.is_elastic() else None
    if mpi is None or ranks is None or ranks.size == 1:
        yield
        return
    from mpi4py import MPI

    ended = threading.Event()
    caller = threading.get_native_id()

    def is_over() -> bool:
        return ended.is_set() or ranks.mpi is not mpi  # they have joined again

    def watch() -> None:
        while not ended.wait(_LOOK):
            try:
                mpi.Iprobe(MPI.ANY_SOURCE, _NO_TAG)
            except MPI.Exception:
                _waits(caller, _CALL, _TWICE, is_over)
                if ranks.mpi is mpi:
                    ranks.break_connections()
                if _waits(caller, _STUCK, _STUCK / 2, is_over):
                    _end()
                return

    thread = threading.Thread(target=watch, name="shanty losses", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _waits(thread: int, patience: float, long: float, is_over: Callable[[], bool]) -> bool:
    """Return whether a thread waits in one collective of XGBoost's for `long`, within `patience`.

    XGBoost 3.2 waits indefinitely where a connection breaks while it prepares a collective: its
    worker ends then, and leaves what it was to do (`Loop::Block` in src/collective/loop.cc). So
    connections are broken while it waits in one; and where it hangs all the same, the rank ends.
    """
    before, since, until = "", 0.0, time.monotonic() + patience
    while (now := time.monotonic()) < until and not is_over():
        try:
            call = Path(f"/proc/self/task/{thread}/syscall").read_text()
        except OSError:  # no Linux
            return False
        if call != before or call.split()[2:4] != _FUTURE:
            before, since = call, now
        elif now - since >= long:
            return True
        time.sleep(_TWICE)
    return False


def _end() -> None:
    print(
        "shanty: this rank ends: XGBoost does not come back from a call that a loss has broken off",
        file=sys.stderr,
        flush=True,
    )
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def leaving_together(ranks: Communicator) -> Iterator[None]:
    """As `blaming_the_lost`. An exception on some ranks only ends the training on all of them.

    The others learn of it within seconds, even if the script catches it.
    """
    try:
        with blaming_the_lost():
            yield
    except WorldError:
        raise
    except Exception as error:
        if not ranks.departures.leave(error):
            ranks.give_up()
        raise


def _now() -> Communicator:
    with _lock:
        if _standing is None and not _ended:
            init()
        return _standing if _standing is not None else Communicator(None)


def _own_mpi() -> MPI.Intracomm:
    """A communicator of all ranks, for this package only."""
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise WorldError(
            "MPI has been finalised, and XGBoost's ranks find each other through it. "
            "Call xgb.init() before MPI.Finalize()."
        )
    if not MPI.Is_initialized():  # mpi4py.rc.initialize = False
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if survivors.is_elastic():
        return survivors.track(survivors.living(promised_world).Dup())
    world = MPI.COMM_WORLD
    if os.environ.get("SHANTY_SPARES"):
        raise WorldError("XGBoost has no use for --spares: start the run without them.")
    promised = os.environ.get("WORLD_SIZE", "") if RUN_DIR in os.environ else str(shanty.size())
    if promised.isdigit() and int(promised) not in (1, world.size):
        library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
        raise WorldError(
            f"The launcher has promised {promised} ranks, but MPI reports a world of {world.size}. "
            f"The MPI library in use is {library!r}; a launcher of another MPI cannot "
            "connect it to the other ranks. Start the script with `shanty run`, or with the mpirun "
            "that belongs to this library."
        )
    return world.Dup()


def _sockets() -> set[int]:
    """The descriptors of this process that are sockets."""
    found = set()
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):  # that of the listing
            if each.is_socket():
                found.add(int(each.name))
    return found


def _let_reset(descriptor: int) -> None:
    """Have the other side of a connection get an error when it is closed.

    XGBoost takes an ordinary end for a pause, and waits.
    """
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _last_words(error: Exception) -> str:
    """The last of XGBoost's chain of reasons, which is the first cause."""
    words = [line[2:].strip() for line in str(error).splitlines() if line.startswith("- [")]
    return words[-1] if words else str(error).partition("\nStack trace")[0] or repr(error)


def _address(comm: MPI.Intracomm) -> str | None:
    """The address of rank 0 for the others: the run's, or loopback if all ranks are on one host.

    None if neither is known: XGBoost then looks for the interface that leads outside. Collective.
    """
    from mpi4py import MPI

    if RUN_DIR in os.environ:
        found = os.environ.get("SHANTY_ADDRESS")
        if not found and os.environ.get(SEAT, "0") != "0":  # rank 0 was lost: this one follows it
            each = os.environ.get("SHANTY_ADDRESSES", "").split(",")[int(os.environ[SEAT]) :][:1]
            found = "".join(each).rpartition(":")[0].strip("[]")
        return found or os.environ.get("MASTER_ADDR") or None
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    alone = here.size == comm.size
    here.Free()
    return "127.0.0.1" if alone else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the line in which XGBoost reports that a process has got a rank."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        for line in said.getvalue().splitlines():
            if "got rank" not in line:
                print(line)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Blocks the real-time signals with which the run checks whether a rank moves.

    XGBoost fails if a signal interrupts a receive while its ranks join or part.
    """
    least = getattr(signal, "SIGRTMIN", 1)
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, range(least, getattr(signal, "SIGRTMAX", 0) + 1)
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _at_exit() -> None:
    """Parts from the other ranks. If the world has failed, another rank has reported it."""
    global _standing
    with suppress(xgboost.core.XGBoostError, WorldError):
        failing = hasattr(sys, "last_value") or FAILING in os.environ
        if _standing is not None and failing:  # the script ends with an error
            standing, _standing = _standing, None
            standing.give_up()  # the others may be anywhere
        else:
            finalize()
    for each in _trackers:
        with suppress(xgboost.core.XGBoostError):
            each.free()
