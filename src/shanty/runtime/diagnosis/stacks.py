"""Requests the stacks of Python ranks, and collects the answers.

Each rank has a thread that writes the stacks of all threads while it holds the interpreter lock
(`rank/stack_server.py`). Where that thread does not get the lock, a signal has faulthandler write
the stack of the main thread. That is safe only while the main thread executes no Python: Python
3.11 to 3.13 crash when they are interrupted at the wrong instruction of a call. So it is sent only
to a main thread that sleeps and has not run for a while, or that has run for a while without an
answer to the probe signal, whose handler is Python's.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from shanty.runtime import platform
from shanty.runtime.rundir import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.diagnosis.mpi_world import MpiWorld
    from shanty.runtime.messages import RankState

PATIENCE = 5.0  # seconds a rank may take to answer
_LOCKED = 1.0  # seconds without an answer after which the interpreter lock counts as held
_AGAIN = 0.2  # seconds after which the request is repeated
_STILL = 0.3  # seconds for which a main thread that executes no Python must have slept
_RAN = 0.01  # seconds of CPU time in which a thread that executes Python answers the probe signal
_SHARE = 0.03  # of a core: more than a main thread takes that waits for the lock
_SYSTEM = ("libc.", "libc-", "ld-linux", "[vdso]")
_FRAME = re.compile(r'  File "(.*)", line ([0-9]+)(?: in )?(.*)')
_NO_PYTHON = "it is not a Python program, or has not reached its script yet"
_STOPPED = "it is stopped, as by SIGSTOP"
MAIN_ONLY = f"only the main thread: the interpreter lock (GIL) was not free for {_LOCKED:g} s"


class StackRequest:
    """One request, called `name`, to the ranks of a host; `pids` gives the processes of each."""

    def __init__(self, run: RunDir, name: str, pids: Mapping[int, Set[int]]) -> None:
        began = time.monotonic()
        self._ranks = [_Rank(run, name, rank, pids[rank], began) for rank in pids]

    def tick(self, now: float) -> bool:
        """Does what is due by the clock; False once nothing more is to be done."""
        self._ranks = [rank for rank in self._ranks if not rank.is_over(now)]
        return bool(self._ranks)


class _Rank:
    """A rank that has not answered yet."""

    def __init__(self, run: RunDir, name: str, rank: int, pids: Set[int], began: float) -> None:
        self._run, self._name, self._rank, self._pids = run, name, rank, pids
        self._began = began
        self._asked = 0.0
        # When the main thread was examined, its state, and its answers to the probe until then.
        self._seen: Optional[Tuple[float, platform.Thread, int]] = None
        self._probed = False
        self._written: Optional[bytes] = None  # by the signal, once that is sent

    def is_over(self, now: float) -> bool:
        """Takes the next step; True once the answer is there, or none will come."""
        if now > self._began + PATIENCE or answer(self._run, self._rank, self._name) is not None:
            return True
        path = self._run.rank_request(self._rank)
        if path.exists():
            # The thread may just have read another request, and lose this one.
            if now > self._asked + _AGAIN and _write(path, self._name):
                self._asked = now
            if now < self._began + _LOCKED:
                return False
        pid, answers = probe_answers(self._run, self._rank)
        if answers is None or pid not in self._pids:
            if not path.exists():
                self._answer(_NO_PYTHON)
            return not path.exists()
        thread = platform.main_thread(pid)
        if thread is not None and thread.state == "T":  # "t": stopped by us, or by a debugger
            self._answer(_STOPPED)
        elif self._written is not None or (
            thread is not None and self._executes_no_python(pid, thread, answers[0], now)
        ):
            return self._by_signal(pid)
        return False

    def _executes_no_python(
        self, pid: int, thread: platform.Thread, answers: int, now: float
    ) -> bool:
        """True where the main thread is inside one call of C, as far as can be seen from outside.

        A thread that waits for the lock wakes up every 5 ms, and may then execute Python.
        """
        if self._seen is None:
            self._seen = now, thread, answers
        since, before, answered = self._seen
        if now < since + _STILL:
            return False
        if thread.state in "SD" and thread.switches == before.switches:
            return not platform.must_not_be_woken(pid)
        if platform.must_not_be_woken(pid):
            return False
        if not self._probed and platform.catches(pid, platform.PROBE_SIGNAL):
            self._probed, self._seen = True, (now, thread, answers)
            platform.signal_main_thread(pid, platform.PROBE_SIGNAL)
            return False
        enough = _RAN + _SHARE * (now - since)
        return self._probed and answers == answered and thread.ran - before.ran > enough

    def _by_signal(self, pid: int) -> bool:
        path = self._run.rank_signal(self._rank)
        before = self._written
        with contextlib.suppress(OSError):
            if before is None:
                os.truncate(path, 0)
                # A script that has closed all files may have one of its own under that number.
                catches = platform.catches(pid, platform.STACKS_SIGNAL)
                if catches and platform.has_open(pid, str(path)):
                    platform.signal_main_thread(pid, platform.STACKS_SIGNAL)
            self._written = path.read_bytes() if before is not None else b""
        if not before or before != self._written:
            return False
        self._answer(MAIN_ONLY, before)
        return True

    def _answer(self, note: str, text: bytes = b"") -> None:
        path = self._run.rank_stacks(self._rank)
        temporary = path.with_suffix(".new.agent")
        with contextlib.suppress(OSError):
            temporary.write_bytes(f"{self._name} {note}\n".encode() + text)
            os.replace(temporary, path)


def _write(fifo: Any, name: str) -> bool:
    """Gives the request to the rank's thread; False while the thread does not wait for one."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, f"{name}\n".encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def probe_answers(run: RunDir, rank: int) -> Tuple[int, Optional[Tuple[int, int]]]:
    """Returns the pid in a rank's probe file, and its answers; 0, None without one.

    The answers are counted: how many, and how many of them from another place.
    """
    with contextlib.suppress(OSError, ValueError), open(run.rank_probe(rank)) as file:
        pid, answered, moves = (int(word) for word in file.read().split())
        return pid, (answered, moves)
    return 0, None


def collect(
    run: RunDir, ranks: Iterable[int], name: str, service: Callable[[], None]
) -> List[Dict[str, Any]]:
    """Returns what each rank answers to the request `name`, which has been sent.

    For each rank its threads, with frames `[file, line, function]`, innermost first, or an error.
    Where not all threads are shown, `note` gives the reason. `service` is called while waiting and
    must not take long.
    """
    answers: Dict[int, Optional[Dict[str, Any]]] = dict.fromkeys(ranks)
    deadline = time.monotonic() + PATIENCE
    while True:
        for rank in [rank for rank, known in answers.items() if known is None]:
            answers[rank] = answer(run, rank, name)
        if None not in answers.values() or time.monotonic() > deadline:
            break
        service()
    late = f"it did not answer within {PATIENCE:g} s"
    return [found or {"rank": rank, "error": late} for rank, found in answers.items()]


def answer(run: RunDir, rank: int, name: str) -> Optional[Dict[str, Any]]:
    """Returns the answer of a rank to the request; None before it is there."""
    try:
        with open(run.rank_stacks(rank), encoding="utf-8", errors="replace") as file:
            request, _, note = file.readline().rstrip("\n").partition(" ")
            text = file.read() if request == name else ""
    except OSError:
        return None
    if request != name:
        return None
    threads = parse_stacks(text)
    if not threads:
        return {"rank": rank, "error": note}
    return {"rank": rank, "threads": threads, **({"note": note} if note else {})}


def with_native(
    answers: Sequence[Mapping[str, Any]], states: Iterable[RankState]
) -> List[Dict[str, Any]]:
    """Returns the answers with each rank's MPI call, `call`, as the node agents saw it.

    A rank that is not a Python program has its native stack, unless it is stopped.
    """
    seen = {state.rank: state for state in states}
    told = []
    for answer in answers:
        state = seen.get(answer["rank"])
        call, frames = (state.call, state.frames or ()) if state is not None else ("", ())
        own = any(file and not file.startswith(_SYSTEM) for file, _, _ in frames)
        if answer.get("error") not in (None, _STOPPED) and (own or call):
            told.append({"rank": answer["rank"], "threads": [{"current": True, "frames": frames}]})
        else:
            told.append({**answer, "call": call})
    return told


def alive(worlds: Mapping[str, MpiWorld]) -> List[int]:
    """Returns the ranks that have not ended, in any world."""
    ranks = [rank for world in worlds.values() for rank in world.ranks.values()]
    return sorted({rank.rank for rank in ranks if rank.ended is None})


def absent(
    expected: Optional[int], worlds: Mapping[str, MpiWorld], answers: Sequence[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """Returns answers for the ranks that were not asked, since they are not there."""
    asked = {answer["rank"] for answer in answers}
    known = {rank.rank: rank for world in worlds.values() for rank in world.ranks.values()}
    told = []
    for rank in sorted({*range(expected or 0), *known} - asked):
        ended = rank in known and known[rank].ended is not None
        told.append({"rank": rank, "error": "it has ended" if ended else "it has not started yet"})
    return told


def parse_stacks(text: str) -> List[Dict[str, Any]]:
    """Reads text in faulthandler's form: threads with their frames, the main thread last."""
    threads: List[Dict[str, Any]] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append({"current": line.startswith(("Current ", "Stack ")), "frames": []})
        frame = _FRAME.fullmatch(line)
        if frame and threads:
            threads[-1]["frames"].append([frame[1], int(frame[2]), frame[3]])
    return threads
