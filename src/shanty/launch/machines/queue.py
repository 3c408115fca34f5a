"""The runs that wait for machines, and what is written down of each: its `site.json`.

    {"target": "machines", "machines": ["gpu1", "gpu2"], "tries": 1, "begins": true}

`machines` are there when it has got them; `begins` when it is being handed over to its lead host,
from when on it may be there. As soon as that is known, the file is what it is for any run on those
hosts, and keeps its `machines`. A run has its machines until it has ended. Whoever changes any of
this holds the lock of the queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.spec import JobSpec

TARGET = "machines"
STOP = "stop"  # is there when somebody wants the run ended before it has begun
ENVIRONMENT = "environ.json"  # of the command that made the run, until it has begun
_SPAWN = 1.0  # seconds between two tries to start the process
_PROCESS = "shanty.launch.scheduler"
_spawned = 0.0
_children: list[subprocess.Popen[bytes]] = []


@contextlib.contextmanager
def held(home: Path) -> Iterator[None]:
    """Hold the lock of the queue while the block lasts; waits for it."""
    path = home / "machines" / "lock"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def site_of(run: RunDir) -> dict[str, Any] | None:
    """Return what is written down of a run that is in the queue; None for all others."""
    site = read_json(run.site)
    return site if site is not None and site.get("target") == TARGET else None


def note(run: RunDir, **changes: Any) -> None:
    """Write down how far a run in the queue has come."""
    write_json(run.site, {**(site_of(run) or {}), **changes})


def begins(run: RunDir) -> None:
    """Write down that a run is being handed over to its hosts; it has nothing to wait for."""
    if site_of(run) is not None:
        status = read_json(run.status) or {}
        write_json(run.status, {**status, "reason": ""})
        note(run, begins=True)


def begun(run: RunDir, site: Mapping[str, Any]) -> None:
    """Write down where a run is now; one that was in the queue leaves it and keeps its machines."""
    machines = (read_json(run.site) or {}).get("machines", ())
    write_json(run.site, {**site, "machines": machines})
    (run.path / ENVIRONMENT).unlink(missing_ok=True)


def write_environment(run: RunDir, environ: Mapping[str, str]) -> None:
    """Keep the environment in which the run is to be started, for this user's eyes only."""
    path = run.path / ENVIRONMENT
    path.touch(mode=0o600)
    write_json(path, dict(environ))


def environment_of(run: RunDir) -> dict[str, str]:
    """Return that environment; this process's own where it is damaged."""
    return read_json(run.path / ENVIRONMENT) or dict(os.environ)


def order(jobs: Mapping[RunDir, JobSpec]) -> list[RunDir]:
    """Return the runs as they are served: by priority, then by their age."""
    return sorted(jobs, key=lambda run: (-jobs[run].priority, run.id))


def starter_lock(run: RunDir) -> Path:
    """Return the file that is locked by the process which starts the run."""
    return run.path / "starter.lock"


def starter_record(run: RunDir) -> Path:
    """Return the file that says which process that is."""
    return run.path / "starter.json"


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def take(path: Path) -> int | None:
    """Lock a file for as long as this process lives; None where another one has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def process_lock(home: Path) -> Path:
    """Return the file that is locked by the process which serves the queue."""
    return home / "machines" / "process.lock"


def ensure_scheduler(home: Path) -> None:
    """See to it that the queue is served: start the scheduler, unless it is there."""
    global _spawned
    if time.monotonic() < _spawned + _SPAWN or is_locked(process_lock(home)):
        return
    _spawned = time.monotonic()
    spawn([sys.executable, "-m", _PROCESS], {**os.environ, "SHANTY_HOME": str(home)}, home)


def spawn(words: Sequence[str], environ: Mapping[str, str], home: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and its terminal; what it says is kept in a log."""
    from shanty.runtime.agent.control import survivor_prefix

    _children[:] = [each for each in _children if each.poll() is None]  # no zombies of a server
    path = home / "machines" / "scheduler.log"
    with storage_errors(path), path.open("ab") as log:
        child = subprocess.Popen(
            [*survivor_prefix(os.environ), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=dict(environ),
            start_new_session=True,
        )
    _children.append(child)
    return child
