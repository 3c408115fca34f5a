"""Samples the progress of a host's ranks while a run is silent: which move, and where they stand.

Equal stacks prove nothing. The native stack of each rank has a `mark`, which changes when the
program has left an MPI call and come back. A Python rank that seems to stand still is sent probe
signals (`rank/progress_probe.py`): an answer while it is in MPI shows that it has left the call
since. A rank *waits* when it has been in one and the same MPI call all the time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import Deque, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Set, Tuple

from shanty.runtime import platform
from shanty.runtime.diagnosis import host_load
from shanty.runtime.diagnosis.elf import UnreadableError
from shanty.runtime.diagnosis.native_stacks import MPI, Look, look_at
from shanty.runtime.diagnosis.stacks import probe_answers
from shanty.runtime.diagnosis.tcp_connections import Traffic
from shanty.runtime.messages import HostLoad, Moves, RankState
from shanty.runtime.mpi.processes import is_launchers
from shanty.runtime.rundir import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.diagnosis import native_stacks
    from shanty.runtime.messages import Frame

_KEPT = 24  # samples of CPU time: two bounds of the controller's
_CLOSELY = 0.4  # seconds
# The functions in which waits for locks and conditions end; these go on after a signal.
_LOCKS = (
    *("PyThread_acquire_lock_timed", "_PyParkingLot_Park", "_PySemaphore_Wait"),
    *("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait"),
    *("sem_wait", "sem_timedwait", "sem_clockwait"),
)
_NEAR = 6  # frames from the innermost, among them the C library's nameless ones
_LONGEST_COMMAND = 60  # letters
Key = Tuple[str, int]  # world and rank
_Answers = Tuple[int, int]  # given by a Python rank; those of them that came from another place


class _Rank:
    """One rank, from the beginning of the watch."""

    def __init__(self, pid: int, answers: Optional[_Answers], now: float) -> None:
        self.pid = pid
        self.answers = answers  # None: it gives none
        self.had_probe = answers is not None
        self.python = answers is not None or _loads(pid, "libpython", "python", "pypy", "libpypy")
        self.asked = answers[0] if answers else 0  # how many, once it has given all answers
        self.answered = now  # when it may last have left the call of C that it is in
        self.moved = now  # when it may last have left the place of Python that it is in
        self.look: Optional[Look] = None
        self.since = now  # since when it has been in the same MPI call
        self.through: Optional[float] = None  # when it was last seen to move in or out of MPI
        self.child: Optional[Tuple[int, str]] = (
            None  # its process that hangs in MPI_Init: pid, command
        )
        self.samples: Deque[Tuple[float, str, float]] = deque(maxlen=_KEPT)  # state, CPU time

    @property
    def state(self) -> str:
        """The state of its process, as the kernel says."""
        return self.samples[-1][1] if self.samples else ""

    def stand(self, look: Optional[Look], now: float) -> None:
        """Takes a look at its main thread."""
        before, self.look = self.look, look
        if look is None or before is None or (look.call, look.mark) != (before.call, before.mark):
            self.since = now
            if look is not None and before is not None and (look.call or before.call):
                self.through = now

    def may_be_asked(self) -> bool:
        """Returns True where a signal disturbs nothing: waits in MPI and for locks go on.

        Other system calls may fail after a signal. A rank that stands elsewhere does not seem to
        wait for other ranks; without its native stack its place is unknown.
        """
        look = self.look
        if look is None or self.state in platform.STOPPED:
            return False
        return bool(look.call) or any(frame.name in _LOCKS for frame in look.frames[:_NEAR])

    def waits(self, now: float) -> float:
        """Returns how long it has been in one MPI call; 0 when it is in none, or unknown."""
        if self.look is None or not self.look.call:
            return 0.0
        if self.answers is None:
            return 0.0 if self.python else now - self.since  # Python's loops all look the same
        return now - max(self.since, self.answered)

    def state_of(self, key: Key, now: float, waiting: Mapping[int, Tuple[int, int]]) -> RankState:
        """Returns the state for the controller, without the host and what the rank waits for."""
        look, samples = self.look, self.samples
        time_passed = samples[-1][0] - samples[0][0] if samples else 0.0
        used = samples[-1][2] - samples[0][2] if samples else 0.0
        ready = sum(state == "R" for _, state, _ in samples)  # it ran or wanted to
        lock = None
        if self.pid in waiting:
            inode, holder = waiting[self.pid]
            lock = host_load.open_file(self.pid, inode), holder
        return RankState(
            host="",
            world=key[0],
            rank=key[1],
            pid=self.pid,
            state=self.state,
            ready=round(ready / max(1, len(samples)), 2),
            cpu=round(used / time_passed, 4) if time_passed > 0 else 0.0,
            read=look is not None,
            call=look.call if look else "",
            waits=round(self.waits(now), 2),
            still=None if self.answers is None else round(now - self.moved, 2),
            inside=None if self.answers is None else round(now - self.answered, 2),
            through=None if self.through is None else round(now - self.through, 2),
            frames=None if look is None or self.python else native_frames(look),
            child=self.child,
            lock=lock,
        )


class ProgressSampler:
    """Watches the ranks of one host; what its links carry is counted for the `bound`, in seconds.

    Traffic from before, while the ranks still moved, says nothing about a stall.
    """

    def __init__(self, run: RunDir, bound: float = 0.0) -> None:
        self._run = run
        self._bound = bound
        self._traffic = Traffic()
        self._counters = deque([(time.monotonic(), host_load.counters((0, 0)))])
        self._ranks: Dict[Key, _Rank] = {}
        self._waiting: Dict[int, Tuple[int, int]] = {}  # for locks, as seen the last time

    def look(self, programs: Mapping[Key, Set[int]], *, closely: bool = False) -> Moves:
        """Looks at all ranks, and returns what is known of them since the first look.

        `programs` gives each rank's processes. `closely`: repeatedly for a moment, so that a loop
        that does little but MPI is not missed.
        """
        now = time.monotonic()
        waiting = host_load.locks()  # before stops and signals, after which a wait begins again
        before, self._waiting = self._waiting, waiting
        known, self._ranks = self._ranks, {}
        for key, pids in programs.items():
            rank = known.get(key)
            process = None if rank is None else platform.process(rank.pid)
            if rank is None or process is None or not rank.had_probe:
                pid, answers = probe_answers(self._run, key[1])
                # The Python that is the rank, else the process that has loaded MPI.
                own = pid in pids
                if rank is None or process is None or own:  # it may have no probe yet
                    rank = _Rank(pid if own else _mpi_process(pids), answers if own else None, now)
                    process = platform.process(rank.pid)
            self._ranks[key] = rank
            if process is not None:
                rank.samples.append((now, process.state, process.cpu))
        running = [r for r in self._ranks.values() if r.state not in (*platform.STOPPED, "")]
        self._stand(running, now)
        for key, rank in self._ranks.items():
            self._probe(key[1], rank, now)
        compiled = [r for r in running if not r.python and r.waits(now)]
        while closely and compiled and time.monotonic() < now + _CLOSELY:
            self._stand(compiled, time.monotonic())
        for rank in running if closely else ():
            rank.child = None if rank.look is None or rank.look.call else _lost_child(rank.pid)
        waiting = {**before, **waiting}  # a signal for the stacks may have been there just now
        told = [
            rank.state_of(key, now, waiting)._replace(wait=self._wait(key[1], rank.pid, now))
            for key, rank in self._ranks.items()
        ]
        return Moves(tuple(told), self._load())

    def _load(self) -> HostLoad:
        own = self._traffic.total([rank.pid for rank in self._ranks.values()])
        now, counters = time.monotonic(), host_load.counters(own)
        while len(self._counters) > 1 and self._counters[1][0] <= now - self._bound:
            self._counters.popleft()
        self._counters.append((now, counters))
        began, since = self._counters[0]
        return host_load.look(since, counters, now - began, self._halted())

    def _halted(self) -> Tuple[Tuple[int, str], ...]:
        """Returns the launcher's processes on this host that are stopped: pid and name."""
        ranks = {rank.pid for rank in self._ranks.values()}
        found = []
        for entry in platform.descendants(os.getpid()):
            if entry.state == "T" and entry.pid not in ranks:
                # A launcher may be a script, whose interpreter comes first.
                words = platform.command(entry.pid)[: 2 if entry.parent == os.getpid() else 1]
                names = filter(is_launchers, map(os.path.basename, words))
                found += [(entry.pid, name) for name in names][:1]
        return tuple(found)

    def _stand(self, ranks: Sequence[_Rank], now: float) -> None:
        looks: Dict[int, Look] = {}
        try:
            looks = look_at(rank.pid for rank in ranks)
        except UnreadableError as error:  # the run goes on, watched or not
            print(f"no native stacks: {error}", file=sys.stderr, flush=True)
        for rank in ranks:
            rank.stand(looks.get(rank.pid), now)

    def _probe(self, number: int, rank: _Rank, now: float) -> None:
        """Takes the answers of a rank; asks again once it has answered all earlier signals."""
        pid, answers = probe_answers(self._run, number)
        before, rank.answers = rank.answers, None
        if before is None or answers is None or pid != rank.pid:
            return  # the script has taken the signal for itself
        if answers[0] != before[0]:
            rank.answered = now
            if rank.look is not None and rank.look.call:
                rank.through = now
        if answers[1] != before[1]:
            rank.moved = now
        if answers[0] >= rank.asked:
            if not rank.may_be_asked():
                rank.answered = rank.moved = now
            elif not platform.catches(pid, platform.PROBE_SIGNAL):
                return  # it is ignored there: nothing can be known
            elif not platform.must_not_be_woken(pid):  # it may have gone on since the look
                rank.asked += 1
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, platform.PROBE_SIGNAL)
        rank.answers = answers

    def _wait(self, number: int, pid: int, now: float) -> Optional[Tuple[str, float]]:
        """Returns what the rank reports to wait for (see `rank_wait`), and for how long."""
        with contextlib.suppress(OSError, ValueError):
            own, since, what = self._run.rank_wait(number).read_text().split(" ", 2)
            if int(own) == pid:
                return what.strip(), round(now - float(since), 2)
        return None


def _mpi_process(pids: Iterable[int]) -> int:
    """Returns the process, or child of one, that has an MPI loaded; else the first."""
    known = sorted(pids)
    for pid in known:
        if _loads(pid, MPI):
            return pid
    children = (entry.pid for pid in known for entry in platform.descendants(pid))
    return next((pid for pid in children if _loads(pid, MPI)), known[0])


def _lost_child(pid: int) -> Optional[Tuple[int, str]]:
    """Returns pid and command of a rank's child that has started MPI and waits in MPI_Init.

    It has inherited the variables by which MPI takes it for the rank.
    """
    mine = platform.command(pid)
    children = [entry.pid for entry in platform.descendants(pid)]
    # A child that was only forked has the same command line, and the libraries of its parent.
    own = [each for each in children if platform.command(each) != mine and _loads(each, MPI)]
    try:
        looks = look_at(own)
    except UnreadableError:
        return None
    found = [each for each in own if each in looks and looks[each].call.startswith("MPI_Init")]
    return (found[0], " ".join(platform.command(found[0]))[:_LONGEST_COMMAND]) if found else None


def _loads(pid: int, *beginnings: str) -> bool:
    """Returns True when the process has loaded a file whose name begins so."""
    return any(os.path.basename(p).startswith(beginnings) for p in platform.mapped_files(pid))


def native_frames(look: Look) -> Tuple[Frame, ...]:
    """Returns the frames from the MPI call outward in the form of Python's: file, 0, function."""
    if not look.call:
        return tuple(_named(look.frames))
    # All functions of the MPI may be nameless.
    inner = max(i for i, frame in enumerate(look.frames) if frame.file.startswith(MPI))
    return (("", 0, look.call), *_named(look.frames[inner + 1 :]))


def _named(frames: Iterable[native_stacks.Frame]) -> Iterator[Frame]:
    return ((frame.file, 0, frame.name) for frame in frames if frame.name)
