"""Reports what this rank's requests wait for to the run's watch (docs/stalls.md). Starts no MPI.

Where a framework's own threads submit requests, as those of a graph in TensorFlow do, the main
thread is in no call that shows, from outside, that the rank waits for others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shanty.runtime.rundir import RUN_DIR, SEAT, RunDir

_SOON = 1.0  # seconds; a shorter wait is not reported

_waits: dict[int, tuple[float, str]] = {}  # since when, by time.monotonic(), and what; by set


def note(process_set: int, age: float, first: Callable[[], str]) -> None:
    """Note that a process set's oldest request, the `first`, has waited so long; 0 for none."""
    if age < _SOON:
        if _waits.pop(process_set, None) is not None:
            _write()
        return
    since, before = _waits.get(process_set, (0.0, ""))
    now, what = time.monotonic() - age, first()
    if before != what or abs(now - since) > _SOON:
        _waits[process_set] = now, what
        _write()


def _write() -> None:
    folder, rank = os.environ.get(RUN_DIR), os.environ.get(SEAT) or os.environ.get("RANK", "")
    if not folder or not rank.isdigit():
        return
    since, what = min(_waits.values(), default=(0.0, ""))
    line = f"{os.getpid()} {since:.3f} {what}\n" if what else ""
    path = RunDir(Path(folder)).rank_wait(int(rank))
    with suppress(OSError):  # the run goes on without it
        path.write_text(line)
