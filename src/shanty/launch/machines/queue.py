"""The runs that wait for machines, and what is written down of each: its `site.json`.

    {"target": "machines", "machines": ["gpu1", "gpu2"], "tries": 1, "begins": true}

See `Queued`. As soon as a run is known to be on its lead host, the file is what it is for any run
on those hosts, and keeps its `machines`. A run has its machines until it has ended. The caller
that changes any of this holds the lock of the queue.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from shanty.launch import lock
from shanty.runtime import site
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.site import Json, Site
from shanty.runtime.spec import JobSpec

TARGET = "machines"
STOP = "stop"  # is there when somebody wants the run ended before it has begun
ENVIRONMENT = "environ.json"  # of the command that made the run, until it has begun
_SPAWN = 1.0  # seconds between two tries to start the process
_PROCESS = "shanty.launch.scheduler.scheduler"
_spawned = 0.0
_children: list[subprocess.Popen[bytes]] = []


class Queued(NamedTuple):
    """How far a run in the queue has come.

    `machines` is empty until it has got them. `tries` counts how often it was started. `begins`
    is true while it is being handed over to its lead host; from then on it may be there.
    """

    machines: tuple[str, ...] = ()
    tries: int = 0
    begins: bool = False

    @classmethod
    def of(cls, where: Site) -> Queued:
        """Read it from the run's site."""
        tries = where.own.get("tries")
        begins = bool(where.own.get("begins"))
        return cls(where.machines or (), tries if isinstance(tries, int) else 0, begins)

    def into(self, where: Site) -> Site:
        """Return the run's site with it."""
        own: dict[str, Json] = {**where.own, "tries": self.tries, "begins": self.begins}
        own = {key: value for key, value in own.items() if value}
        return where._replace(machines=self.machines or None, own=own)


def held(home: Path) -> AbstractContextManager[None]:
    """Hold the lock of the queue while a block lasts; waits for it."""
    return lock.held(home / "machines" / "lock")


def waiting(run: RunDir) -> Queued | None:
    """Return how far a run in the queue has come; None for all others."""
    where = site.read(run)
    return Queued.of(where) if where is not None and where.target == TARGET else None


def note(run: RunDir, queued: Queued) -> None:
    """Write down how far a run in the queue has come."""
    site.write(run, queued.into(site.read(run) or Site(TARGET)))


def begins(run: RunDir) -> None:
    """Write down that a run is being handed over to its hosts; it has nothing to wait for."""
    queued = waiting(run)
    if queued is not None:
        status = read_json(run.status) or {}
        write_json(run.status, {**status, "reason": ""})
        note(run, queued._replace(begins=True))


def begun(run: RunDir, where: Site) -> None:
    """Write down where a run is now; a run in the queue leaves it and keeps its machines."""
    machines = (site.read(run) or Site()).machines or ()
    site.write(run, where._replace(machines=machines))
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


def process_lock(home: Path) -> Path:
    """Return the file that is locked by the process which serves the queue."""
    return home / "machines" / "process.lock"


def ensure_scheduler(home: Path) -> None:
    """Start the scheduler, which serves the queue, unless it is there."""
    global _spawned
    if time.monotonic() < _spawned + _SPAWN or lock.is_locked(process_lock(home)):
        return
    _spawned = time.monotonic()
    spawn([sys.executable, "-m", _PROCESS], {**os.environ, "SHANTY_HOME": str(home)}, home)


def spawn(words: Sequence[str], environ: Mapping[str, str], home: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and its terminal; its output is kept in a log."""
    from shanty.runtime.run_agents import start_survivor

    _children[:] = [each for each in _children if each.poll() is None]  # no zombies of a server
    path = home / "machines" / "scheduler.log"
    with storage_errors(path):
        child = start_survivor(words, path, "/", environ)
    _children.append(child)
    return child
