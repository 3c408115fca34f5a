"""Finds out what the ranks of a silent run are busy with: compiling, reading files, downloading.

The node agents read /proc: which processes the ranks have started, how much they read, and how
much CPU they use. No process is stopped or sent a signal. Whether a run is stuck is another
question (`stall_detector`).
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from shanty.runtime import platform, proc_files
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.diagnosis.run_view import Actions, RunView
from shanty.runtime.messages import LookAtActivity, RankActivity
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import State

QUIET = 15.0  # seconds without output of any rank after which the node agents look
_EVERY = 5.0  # seconds between two looks
_SHOWN = 3  # programs, or groups of ranks, that are named
_BUSY = 0.3  # of a core
_LOADING = 2 << 20  # bytes a second that are read by a process which loads something
_COMPILERS = frozenset(
    (
        *("as", "c++", "cc", "cc1", "cc1plus", "cicc", "clang", "clang++", "cmake", "collect2"),
        *("cudafe++", "fatbinary", "g++", "gcc", "gfortran", "hipcc", "icpx", "icx", "ld", "lld"),
        *("make", "ninja", "nvcc", "nvlink", "ptxas", "rustc"),
    )
)
Key = Tuple[str, int]  # world and rank
_Seen = Tuple[float, float, int]  # when, CPU time, bytes read: of a rank with its children


class ActivitySampler:
    """Sees what the ranks of this host do, from one look to the next."""

    def __init__(self) -> None:
        self._before: Dict[Key, _Seen] = {}
        self._received = (0.0, 0)

    def look(self, programs: Mapping[Key, Set[int]]) -> Tuple[RankActivity, ...]:
        """Returns for each rank what it `does`; "" as long as that is unknown."""
        now, received = time.monotonic(), _received()
        rate = (received - self._received[1]) / max(0.1, now - self._received[0])
        self._received = now, received
        children: Dict[int, List[platform.Process]] = {}
        for entry in platform.descendants(os.getpid()):
            children.setdefault(entry.parent, []).append(entry)
        told = []
        for key, pids in programs.items():
            family = [each for each in map(platform.process, pids) if each is not None]
            known = {each.pid for each in family}  # a program, and a Python that it has started
            for each in family:  # which grows
                new = [child for child in children.get(each.pid, ()) if child.pid not in known]
                known.update(child.pid for child in new)
                family += new
            does = self._does(key, family, {_name(pid) for pid in pids}, rate)
            told.append(RankActivity(key[0], key[1], does))
        return tuple(told)

    def _does(
        self, key: Key, family: Sequence[platform.Process], own: Set[str], received: float
    ) -> str:
        """Returns what a rank does with its children; `own` are the names of its own processes."""
        now = time.monotonic()
        cpu, read = sum(each.cpu for each in family), sum(_bytes_read(e.pid) for e in family)
        before = self._before.get(key)
        self._before[key] = now, cpu, read
        names = {_name(entry.pid) for entry in family}
        if names & _COMPILERS:
            return f"compiling ({_some(names & _COMPILERS)})"
        if before is None:
            return ""
        passed = max(0.1, now - before[0])
        others = names - own - {""}
        # A process that is ready to run is busy, too, where others take its share of the cores.
        busy = (cpu - before[1]) / passed > _BUSY or any(e.state == "R" for e in family)
        if received > _LOADING and not busy:
            return "receiving data from the network"
        if (read - before[2]) / passed > _LOADING:
            return "reading files"
        if busy:
            return "busy" + (f" ({_some(others)})" if others else "")  # or it waits in MPI
        if others:
            return f"waiting for {_some(others)}"
        if any(entry.state == "D" for entry in family):
            return "waiting for a disk or file system"
        return "idle"


def _some(names: Set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:_SHOWN]) + (" …" if len(shown) > _SHOWN else "")


def _name(pid: int) -> str:
    words = platform.command(pid)
    return os.path.basename(words[0]) if words else ""


def _bytes_read(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io") as file:
        return int(file.readline().split()[1])  # rchar: from files, also where they were cached
    return 0


def _received() -> int:
    """Returns the bytes that this host has received from others."""
    return sum(link[0] for name, link in proc_files.links().items() if name != "lo")


class ActivityWatch:
    """Asks the node agents while a run is silent, on behalf of the controller."""

    def __init__(self, run: RunDir, actions: Actions) -> None:
        self._run = run
        self._actions = actions
        self._next = 0.0
        self._watching = False
        self._does: Dict[str, Dict[Key, str]] = {}  # by host

    def tick(self, view: RunView, now: float) -> None:
        """Does what is due by the clock."""
        if now < self._next:
            return
        self._next = now + _EVERY
        on = view.state in (State.STARTING, State.RUNNING) and not view.ending
        if on and time.time() - self._last_word(view.started) > QUIET:
            self._actions.tell(LookAtActivity(afresh=not self._watching))
            self._watching = True
        elif self._watching:
            self._watching = False
            self._does.clear()
            self._actions.active("")

    def hear(self, host: str, ranks: Sequence[RankActivity]) -> None:
        """Takes what a node agent saw."""
        if self._watching:
            self._does[host] = {(each.world, each.rank): each.does for each in ranks}
            self._actions.active(self.text())

    def text(self) -> str:
        """Returns what the ranks do, equal activities together; "" while it is unknown."""
        groups: Dict[str, List[int]] = {}
        for ranks in self._does.values():
            for (_, rank), does in ranks.items():
                groups.setdefault(does, []).append(rank)
        if "" in groups or not groups:
            return ""
        if len(groups) == 1:
            return next(iter(groups))
        told = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
        parts = [f"{named(sorted(set(ranks)))} {does}" for does, ranks in told[:_SHOWN]]
        return ", ".join(parts) + (" …" if len(told) > _SHOWN else "")

    def _last_word(self, started: Optional[float]) -> float:
        run, newest = self._run, started
        for path in (*run.rank_logs().values(), run.launcher_log, run.metrics, run.progress):
            with contextlib.suppress(OSError):
                newest = max(newest or 0.0, os.stat(path).st_mtime)
        return newest if newest is not None else time.time()
