"""Reports to the run's watch what this rank's requests wait for. Starts no MPI.

Where a framework's own threads submit requests, as those of a graph in TensorFlow do, the main
thread is in no call that shows, from outside, that the rank waits for others. A separate thread
writes the reports, since the thread that carries out the requests may itself wait, within MPI.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from shanty.runtime.rundir import RUN_DIR, SEAT, RunDir

_SOON = 1.0  # seconds; a shorter wait is not reported
_PAUSE = 0.5  # seconds between two looks


class Waiting(Protocol):
    """Requests of a process set; another thread may change them meanwhile."""

    def oldest(self) -> float:
        """Return the seconds that the first has waited; 0 for none."""

    def first(self) -> str:
        """Return its name."""


_lock = threading.Lock()  # for what follows
_sets: dict[int, Waiting] = {}  # by the set's number
_waits: dict[int, tuple[float, str]] = {}  # since when, by time.monotonic(), and what; by set
_thread: threading.Thread | None = None


def watch(number: int, requests: Waiting) -> None:
    """Report the waits of this process set from now on, until `end`."""
    global _thread
    if not os.environ.get(RUN_DIR):
        return
    with _lock:
        _sets[number] = requests
        if _thread is None:
            _thread = threading.Thread(target=_run, name="shanty-waits", daemon=True)
            _thread.start()


def refresh(number: int) -> None:
    """Look again at a process set whose wait was reported: it may be over."""
    if number in _waits:
        _look(number)


def _look(number: int) -> None:
    with _lock, suppress(RuntimeError):  # they changed at that moment; another look follows
        requests = _sets.get(number)
        age = requests.oldest() if requests is not None else 0.0
        if requests is None or age < _SOON:
            if _waits.pop(number, None) is not None:
                _write()
            return
        since, before = _waits.get(number, (0.0, ""))
        now, what = time.monotonic() - age, requests.first()
        if what and (before != what or abs(now - since) > _SOON):
            _waits[number] = now, what
            _write()


def end(number: int, requests: Waiting) -> None:
    """Report these requests no more; others of the same number, which came later, still are."""
    with _lock:
        if _sets.get(number) is requests:
            del _sets[number]
    _look(number)


def _run() -> None:
    while True:
        time.sleep(_PAUSE)
        for number in tuple(_sets):
            _look(number)


def _write() -> None:
    folder, rank = os.environ.get(RUN_DIR), os.environ.get(SEAT) or os.environ.get("RANK", "")
    if not folder or not rank.isdigit():
        return
    since, what = min(_waits.values(), default=(0.0, ""))
    line = f"{os.getpid()} {since:.3f} {what}\n" if what else ""
    path = RunDir(Path(folder)).rank_wait(int(rank))
    with suppress(OSError):  # the run goes on without it
        path.write_text(line)
