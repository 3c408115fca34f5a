"""Samples the progress of a host's ranks while a run is silent: which move, and where they stand.

Nothing is guessed from equal stacks. Of any rank the native stack is read (`native.py`), whose
`mark` changes when the program has left an MPI call and come back. A Python rank that looks as if
it stood still is met by pulses (`rank/pulse.py`): one that it answers while it is in MPI shows that
it has left the call since. A rank *waits* when it has been in one and the same MPI call all along.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import (
    Any,
    Deque,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from shanty.runtime import platform
from shanty.runtime.agent.elf import UnreadableError
from shanty.runtime.agent.host_load import HostLoad, cpu_seconds, locks, open_file
from shanty.runtime.agent.native_stacks import MPI, Look, Native
from shanty.runtime.rundir import RunDir

_KEPT = 24  # samples of CPU time: two bounds of the controller's
_CLOSELY = 0.4  # seconds
# What waits for locks and conditions end in; they go on after a signal.
_LOCKS = (
    *("PyThread_acquire_lock_timed", "_PyParkingLot_Park", "_PySemaphore_Wait"),
    *("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait"),
    *("sem_wait", "sem_timedwait", "sem_clockwait"),
)
_NEAR = 6  # frames from the innermost, among them the C library's nameless ones
Key = Tuple[str, int]  # world and rank


class Pulses(NamedTuple):
    """The answers of a Python rank, and how many of them came from another place."""

    answered: int
    moves: int


class _Watched:
    """One rank, from the beginning of the watch."""

    def __init__(self, pid: int, pulses: Optional[Pulses], now: float) -> None:
        self.pid = pid
        self.pulses = pulses  # None: it answers none
        self.python = pulses is not None or _is_python(pid)
        self.asked = pulses.answered if pulses else 0  # how many, once it has given all answers
        self.answered = now  # when it was last not inside of one call of C, for all that is known
        self.moved = now  # when it was last not in the same place of Python
        self.look: Optional[Look] = None
        self.since = now  # since when it has been in the same MPI call
        self.through: Optional[float] = None  # when it was last seen to move in or out of MPI
        self.states: Deque[str] = deque(maxlen=_KEPT)
        self.cpu: Deque[Tuple[float, float]] = deque(maxlen=_KEPT)

    def beat(self, pulses: Optional[Pulses], now: float) -> bool:
        """Take what the rank has answered; True when it is to be asked again."""
        if self.pulses is None or pulses is None:
            self.pulses = None  # the script has taken the signal for itself
            return False
        before, self.pulses = self.pulses, pulses
        if pulses.answered != before.answered:
            self.answered = now
            if self.look is not None and self.look.call:
                self.through = now
        if pulses.moves != before.moves:
            self.moved = now
        if pulses.answered < self.asked:
            return False
        if not self._may_be_asked():
            self.answered = self.moved = now
            return False
        return True

    def _may_be_asked(self) -> bool:
        """True where a signal disturbs nothing: MPI and locks go on, what polls may not.

        What stands elsewhere does not wait for other ranks, as far as anyone could tell; where it
        stands is not known without its native stack.
        """
        look = self.look
        if look is None or self.state in ("T", "t"):
            return False
        return bool(look.call) or any(frame.name in _LOCKS for frame in look.frames[:_NEAR])

    def stand(self, look: Optional[Look], now: float) -> None:
        """Take where its main thread stands."""
        before, self.look = self.look, look
        if look is None or before is None or (look.call, look.mark) != (before.call, before.mark):
            self.since = now
            if look is not None and before is not None and (look.call or before.call):
                self.through = now

    def use(self, now: float) -> None:
        """Take its state and the CPU time that it has used."""
        found = cpu_seconds(self.pid)
        if found is not None:
            self.states.append(found[0])
            self.cpu.append((now, found[1]))

    @property
    def state(self) -> str:
        """What the kernel says it does now."""
        return self.states[-1] if self.states else ""

    @property
    def ready(self) -> float:
        """How often it ran or wanted to, 0 … 1."""
        return round(self.states.count("R") / max(1, len(self.states)), 2)

    def waits(self, now: float) -> float:
        """For how long it has been in one MPI call; 0 when it is in none, or that is unknown."""
        if self.look is None or not self.look.call:
            return 0.0
        if self.pulses is None:
            return 0.0 if self.python else now - self.since  # Python's loops all look the same
        return now - max(self.since, self.answered)

    def share(self) -> float:
        """The part of a core that it used."""
        if len(self.cpu) < 2 or self.cpu[-1][0] <= self.cpu[0][0]:
            return 0.0
        (start, first), (end, last) = self.cpu[0], self.cpu[-1]
        return round((last - first) / (end - start), 4)


class ProgressSampler:
    """The ranks of one host; `programs` gives each rank's processes."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._native = Native()
        self._load = HostLoad()
        self._ranks: Dict[Key, _Watched] = {}
        self._waiting: Dict[int, Tuple[int, int]] = {}  # for locks, as seen the last time

    def look(self, programs: Mapping[Key, Set[int]], *, closely: bool = False) -> Dict[str, Any]:
        """Look at all ranks, and say what is known of them since the first look.

        `closely`: again and again for a moment, lest a loop that does little but MPI is missed.
        """
        now = time.monotonic()
        waiting = locks()  # before the stops and signals below, after which a wait begins anew
        before, self._waiting = self._waiting, waiting
        self._native.forget()
        for key, pids in programs.items():
            watched = self._ranks.get(key)
            if watched is None or platform.process(watched.pid) is None:
                pid, pulses = self._process_of(key[1], pids)
                self._ranks[key] = _Watched(pid, pulses, now)
        self._ranks = {key: self._ranks[key] for key in programs}
        for watched in self._ranks.values():
            watched.use(now)
        running = [w for w in self._ranks.values() if w.state not in ("T", "t", "")]
        self._stand(running, now)
        for key, watched in self._ranks.items():
            self._pulse(key[1], watched, now)
        compiled = [w for w in running if not w.python and w.waits(now)]
        while closely and compiled and time.monotonic() < now + _CLOSELY:
            self._stand(compiled, time.monotonic())
        waiting = {**before, **waiting}  # a signal for the stacks may have been there just now
        ranks = [_told(key, w, now, waiting) for key, w in self._ranks.items()]
        return {"moves": ranks, "load": self._load.look()}

    def _stand(self, ranks: Sequence[_Watched], now: float) -> None:
        looks: Dict[int, Look] = {}
        try:
            looks = self._native.looks(watched.pid for watched in ranks)
        except UnreadableError as error:  # the run goes on, watched or not
            print(f"no native stacks: {error}", file=sys.stderr, flush=True)
        for watched in ranks:
            watched.stand(looks.get(watched.pid), now)

    def _pulse(self, rank: int, watched: _Watched, now: float) -> None:
        """Ask whether it moves, once it has answered the last time."""
        pid, pulses = self._answers(rank)
        ask = watched.beat(pulses if pid == watched.pid else None, now)
        if ask and not platform.catches(pid, platform.PULSE_SIGNAL):
            watched.pulses = None  # it is ignored there: nothing can be known
        elif ask:
            watched.asked += 1
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, platform.PULSE_SIGNAL)

    def _process_of(self, rank: int, pids: Iterable[int]) -> Tuple[int, Optional[Pulses]]:
        """The process that is the rank: the Python that says so, else the one that has MPI."""
        pid, pulses = self._answers(rank)
        if pid in pids:
            return pid, pulses
        return mpi_process(pids), None

    def _answers(self, rank: int) -> Tuple[int, Optional[Pulses]]:
        """The pid in a rank's pulse file, and its answers; 0, None without one."""
        with contextlib.suppress(OSError, ValueError), open(self._run.rank_pulse(rank)) as file:
            pid, answered, moves = (int(word) for word in file.read().split())
            return pid, Pulses(answered, moves)
        return 0, None


def mpi_process(pids: Iterable[int]) -> int:
    """The one of the processes, or of their children, that has an MPI loaded; else the first."""
    known = sorted(pids)
    for pid in known:
        if _has_mpi(pid):
            return pid
    for pid in known:
        for entry in platform.descendants(pid):
            if _has_mpi(entry.pid):
                return entry.pid
    return known[0]


def _has_mpi(pid: int) -> bool:
    return any(os.path.basename(path).startswith(MPI) for path in platform.mapped_files(pid))


def _is_python(pid: int) -> bool:
    names = {os.path.basename(path) for path in platform.mapped_files(pid)}
    return any(name.startswith(("libpython", "python", "pypy", "libpypy")) for name in names)


def native_frames(look: Look) -> List[List[Any]]:
    """The frames from the MPI call outward, in the form that Python's have: file, 0, function."""
    frames, call = look.frames, []
    if look.call:  # all functions of the MPI may be nameless
        inner = max(i for i, frame in enumerate(frames) if frame.file.startswith(MPI))
        frames, call = frames[inner + 1 :], [["", 0, look.call]]
    return call + [[frame.file, 0, frame.name] for frame in frames if frame.name]


def _told(
    key: Key, watched: _Watched, now: float, waiting: Mapping[int, Tuple[int, int]]
) -> Dict[str, Any]:
    """What the controller is told of a rank; times are ages in seconds."""
    look = watched.look
    told: Dict[str, Any] = {
        "world": key[0],
        "rank": key[1],
        "pid": watched.pid,
        "state": watched.state,
        "ready": watched.ready,
        "cpu": watched.share(),
        "read": look is not None,
        "call": look.call if look else "",
        "waits": round(watched.waits(now), 2),
        "still": None if watched.pulses is None else round(now - watched.moved, 2),
        "inside": None if watched.pulses is None else round(now - watched.answered, 2),
        "through": None if watched.through is None else round(now - watched.through, 2),
    }
    if look is not None and not watched.python:
        told["frames"] = native_frames(look)
    if watched.pid in waiting:
        inode, holder = waiting[watched.pid]
        told["lock"] = [open_file(watched.pid, inode), holder]
    return told
