"""Samples the progress of a host's ranks while a run is silent: which move, and where they stand.

Nothing is guessed from equal stacks. Of any rank the native stack is read, whose `mark` changes
when the program has left an MPI call and come back. A Python rank that looks as if it stood still
is sent probe signals (`rank/progress_probe.py`): one that it answers while it is in MPI shows that
it has left the call since. A rank *waits* when it has been in one and the same MPI call all along.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from shanty.runtime import platform
from shanty.runtime.agent import host_load
from shanty.runtime.agent.elf import UnreadableError
from shanty.runtime.agent.native_stacks import MPI, Look, look_at
from shanty.runtime.agent.stacks import probe_answers
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
_LONGEST_COMMAND = 60  # letters
_STOPPED = ("T", "t")
Key = Tuple[str, int]  # world and rank
_Answers = Tuple[int, int]  # given by a Python rank; those of them that came from another place


class _Rank:
    """One rank, from the beginning of the watch."""

    def __init__(self, pid: int, answers: Optional[_Answers], now: float) -> None:
        self.pid = pid
        self.answers = answers  # None: it gives none
        self.python = answers is not None or _loads(pid, "libpython", "python", "pypy", "libpypy")
        self.asked = answers[0] if answers else 0  # how many, once it has given all answers
        self.answered = now  # when it was last not inside of one call of C, for all that is known
        self.moved = now  # when it was last not in the same place of Python
        self.look: Optional[Look] = None
        self.since = now  # since when it has been in the same MPI call
        self.through: Optional[float] = None  # when it was last seen to move in or out of MPI
        self.child: Optional[List[Any]] = None  # its process that hangs in MPI_Init: pid, command
        self.samples: Deque[Tuple[float, str, float]] = deque(maxlen=_KEPT)  # state, CPU time

    @property
    def state(self) -> str:
        """The state of its process, as the kernel says."""
        return self.samples[-1][1] if self.samples else ""

    def stand(self, look: Optional[Look], now: float) -> None:
        """Takes where its main thread stands."""
        before, self.look = self.look, look
        if look is None or before is None or (look.call, look.mark) != (before.call, before.mark):
            self.since = now
            if look is not None and before is not None and (look.call or before.call):
                self.through = now

    def may_be_asked(self) -> bool:
        """Returns True where a signal disturbs nothing: MPI and locks go on, what polls may not.

        What stands elsewhere does not wait for other ranks, as far as anyone could tell; where it
        stands is not known without its native stack.
        """
        look = self.look
        if look is None or self.state in _STOPPED:
            return False
        return bool(look.call) or any(frame.name in _LOCKS for frame in look.frames[:_NEAR])

    def waits(self, now: float) -> float:
        """Returns how long it has been in one MPI call; 0 when it is in none, or unknown."""
        if self.look is None or not self.look.call:
            return 0.0
        if self.answers is None:
            return 0.0 if self.python else now - self.since  # Python's loops all look the same
        return now - max(self.since, self.answered)

    def report(
        self, key: Key, now: float, waiting: Mapping[int, Tuple[int, int]]
    ) -> Dict[str, Any]:
        """Returns what the controller is told; times are ages in seconds, `cpu` is in cores."""
        look, samples = self.look, self.samples
        time_passed = samples[-1][0] - samples[0][0] if samples else 0.0
        used = samples[-1][2] - samples[0][2] if samples else 0.0
        ready = sum(state == "R" for _, state, _ in samples)  # it ran or wanted to
        told: Dict[str, Any] = {
            "world": key[0],
            "rank": key[1],
            "pid": self.pid,
            "state": self.state,
            "ready": round(ready / max(1, len(samples)), 2),
            "cpu": round(used / time_passed, 4) if time_passed > 0 else 0.0,
            "read": look is not None,
            "call": look.call if look else "",
            "waits": round(self.waits(now), 2),
            "still": None if self.answers is None else round(now - self.moved, 2),
            "inside": None if self.answers is None else round(now - self.answered, 2),
            "through": None if self.through is None else round(now - self.through, 2),
            "wait": None,
        }
        if look is not None and not self.python:
            told["frames"] = native_frames(look)
        if self.child:
            told["child"] = self.child
        if self.pid in waiting:
            inode, holder = waiting[self.pid]
            told["lock"] = [host_load.open_file(self.pid, inode), holder]
        return told


class ProgressSampler:
    """Watches the ranks of one host; what its links carry is counted for the `bound`, in seconds.

    What they carried before, while the ranks still moved, says nothing of a stall.
    """

    def __init__(self, run: RunDir, bound: float = 0.0) -> None:
        self._run = run
        self._bound = bound
        self._counters = deque([(time.monotonic(), host_load.counters())])
        self._ranks: Dict[Key, _Rank] = {}
        self._waiting: Dict[int, Tuple[int, int]] = {}  # for locks, as seen the last time

    def look(self, programs: Mapping[Key, Set[int]], *, closely: bool = False) -> Dict[str, Any]:
        """Looks at all ranks, and returns what is known of them since the first look.

        `programs` gives each rank's processes. `closely`: again and again for a moment, lest a
        loop that does little but MPI is missed.
        """
        now = time.monotonic()
        waiting = host_load.locks()  # before stops and signals, after which a wait begins anew
        before, self._waiting = self._waiting, waiting
        known, self._ranks = self._ranks, {}
        for key, pids in programs.items():
            rank = known.get(key)
            process = None if rank is None else platform.process(rank.pid)
            if rank is None or process is None:
                pid, answers = probe_answers(self._run, key[1])
                # The Python that says that it is the rank, else the process that has MPI.
                own = pid in pids
                rank = _Rank(pid if own else _mpi_process(pids), answers if own else None, now)
                process = platform.process(rank.pid)
            self._ranks[key] = rank
            if process is not None:
                rank.samples.append((now, process.state, process.cpu))
        running = [r for r in self._ranks.values() if r.state not in (*_STOPPED, "")]
        self._stand(running, now)
        for key, rank in self._ranks.items():
            self._probe(key[1], rank, now)
        compiled = [r for r in running if not r.python and r.waits(now)]
        while closely and compiled and time.monotonic() < now + _CLOSELY:
            self._stand(compiled, time.monotonic())
        for rank in running if closely else ():
            rank.child = None if rank.look is None or rank.look.call else _lost_child(rank.pid)
        waiting = {**before, **waiting}  # a signal for the stacks may have been there just now
        moves = [rank.report(key, now, waiting) for key, rank in self._ranks.items()]
        for told in moves:
            told["wait"] = self._wait(told["rank"], told["pid"], now)
        return {"moves": moves, "load": self._load()}

    def _load(self) -> Dict[str, Any]:
        """Returns the host's load, with the `seconds` over which its counts are."""
        now, counters = time.monotonic(), host_load.counters()
        while len(self._counters) > 1 and self._counters[1][0] <= now - self._bound:
            self._counters.popleft()
        self._counters.append((now, counters))
        began, since = self._counters[0]
        return {**host_load.look(since, counters), "seconds": now - began}

    def _stand(self, ranks: Sequence[_Rank], now: float) -> None:
        looks: Dict[int, Look] = {}
        try:
            looks = look_at(rank.pid for rank in ranks)
        except UnreadableError as error:  # the run goes on, watched or not
            print(f"no native stacks: {error}", file=sys.stderr, flush=True)
        for rank in ranks:
            rank.stand(looks.get(rank.pid), now)

    def _probe(self, number: int, rank: _Rank, now: float) -> None:
        """Takes what a rank has answered; asks again once it has answered the last time."""
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
            else:
                rank.asked += 1
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, platform.PROBE_SIGNAL)
        rank.answers = answers

    def _wait(self, number: int, pid: int, now: float) -> Optional[List[Any]]:
        """Returns what the rank says that it waits for (see `rank_wait`), and for how long."""
        with contextlib.suppress(OSError, ValueError):
            own, since, what = self._run.rank_wait(number).read_text().split(" ", 2)
            if int(own) == pid:
                return [what.strip(), round(now - float(since), 2)]
        return None


def _mpi_process(pids: Iterable[int]) -> int:
    """Returns the process, or child of one, that has an MPI loaded; else the first."""
    known = sorted(pids)
    for pid in known:
        if _loads(pid, MPI):
            return pid
    children = (entry.pid for pid in known for entry in platform.descendants(pid))
    return next((pid for pid in children if _loads(pid, MPI)), known[0])


def _lost_child(pid: int) -> Optional[List[Any]]:
    """Returns pid and command of a rank's child that has started MPI and waits in MPI_Init.

    It has inherited what makes it believe to be the rank.
    """
    mine = platform.command(pid)
    children = [entry.pid for entry in platform.descendants(pid)]
    # One that was forked only has the same words, and what its parent had loaded.
    own = [each for each in children if platform.command(each) != mine and _loads(each, MPI)]
    try:
        looks = look_at(own)
    except UnreadableError:
        return None
    found = [each for each in own if each in looks and looks[each].call.startswith("MPI_Init")]
    return [found[0], " ".join(platform.command(found[0]))[:_LONGEST_COMMAND]] if found else None


def _loads(pid: int, *beginnings: str) -> bool:
    """Returns True when the process has loaded a file whose name begins so."""
    return any(os.path.basename(p).startswith(beginnings) for p in platform.mapped_files(pid))


def native_frames(look: Look) -> List[List[Any]]:
    """Returns the frames from the MPI call outward in the form of Python's: file, 0, function."""
    frames, call = look.frames, []
    if look.call:  # all functions of the MPI may be nameless
        inner = max(i for i, frame in enumerate(frames) if frame.file.startswith(MPI))
        frames, call = frames[inner + 1 :], [["", 0, look.call]]
    return call + [[frame.file, 0, frame.name] for frame in frames if frame.name]
