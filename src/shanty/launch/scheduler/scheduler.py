"""Looks at all runs that are on, again and again, and gives free machines to those that wait.

`python -m shanty.launch.scheduler.scheduler`; there is one such process for each home of shanty's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from shanty.launch import lock, settings
from shanty.launch.index import Runs, read_job
from shanty.launch.machines import queue, types
from shanty.launch.machines.allotment import allot
from shanty.launch.machines.types import machines_of
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime import run_status
from shanty.runtime.errors import STOPPED_EXIT, LaunchError, ShantyError, StorageError
from shanty.runtime.rundir import RunDir, home
from shanty.runtime.spec import JobSpec, State, Status

_LOOK, _SELDOM = 0.3, 2.0  # seconds between two looks: at first, and when nothing changes
_STEADY = 30.0  # seconds without a change after which it looks seldom
_TRIES = 10  # times that a run is started, where what starts it is killed
_STARTER = "shanty.launch.scheduler.starter"


class Scheduler:
    """Serves the queue of one home. `lock` is held while the process is there."""

    def __init__(self, home: Path, lock: int) -> None:
        self._home = home
        self._lock = lock
        here = Surroundings(home, dict(os.environ), settings.load(home))
        self._targets = Targets(here)
        self._runs = Runs(home, self._targets)
        self._ended: set[str] = set()  # ids of runs that are over
        self._starters: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        """Serve until nothing waits."""
        seen: object = None
        changed = time.monotonic()
        while True:
            present = self._present()
            if present != seen:
                seen, changed = present, time.monotonic()
            with queue.held(self._home):
                if not self._serve([*present, *self._new(present)]):
                    os.close(self._lock)  # who comes once the queue is let go starts another
                    return
            now = time.monotonic()
            time.sleep(_LOOK if now < changed + _STEADY else _SELDOM)

    def _present(self) -> dict[RunDir, Status]:
        """The runs that are on, with their states; by their folders, which cannot be out of date.

        A LOST run may still go on.
        """
        found = self._targets.describe(self._new(()))
        self._ended.update(run.id for run, status in found.items() if status.ended is not None)
        return {run: status for run, status in found.items() if status.ended is None}

    def _new(self, known: Collection[RunDir]) -> list[RunDir]:
        """The runs that are neither known nor over."""
        ids = {run.id for run in known} | self._ended
        return [self._runs.directory(each) for each in self._runs.ids() if each not in ids]

    def _serve(self, present: Sequence[RunDir]) -> bool:
        """Do what can be done now for the runs that are on; returns whether anything waits."""
        queued = {run: found for run in present if (found := queue.waiting(run)) is not None}
        jobs = {run: read_job(run) for run in queued}
        waiting: dict[RunDir, JobSpec] = {}
        starting = []
        for run, job in jobs.items():
            if run_status.read_status(run).state.final:
                continue
            if job is None:
                error = StorageError(f"{run.job} is missing or damaged", fix="run the job again")
                run_status.conclude_error(run, error)
            elif queued[run].machines:
                starting.append(run)
            elif (run.path / queue.STOP).exists():
                run_status.conclude(run, State.STOPPED, None, STOPPED_EXIT)
            else:
                waiting[run] = job
        taken = _taken(present)
        self._give(waiting, taken, starting)
        for run in starting:
            self._start(run)
        return bool(waiting or starting)

    def _give(
        self, waiting: dict[RunDir, JobSpec], taken: Mapping[str, bool], starting: list[RunDir]
    ) -> None:
        kinds: dict[str, dict[str, str]] = {}
        for run, job in list(waiting.items()):
            try:
                for name, _ in job.machines:
                    if name not in kinds:
                        kinds[name] = types.load(name, self._home).machines(self._home)
            except ShantyError as error:
                run_status.conclude_error(run, error)
                del waiting[run]
        ordered = queue.order(waiting)
        wanted = {run.id: waiting[run] for run in ordered}
        given = allot(wanted, {name: list(each) for name, each in kinds.items()}, taken)
        for place, run in enumerate(ordered):
            machines = given.get(run.id)
            if machines is not None:
                queue.note(run, queue.Queued(tuple(machines)))
                run_status.write_reason(run, f"is being started on {', '.join(machines)}")
                starting.append(run)
                del waiting[run]
            else:
                before = sum(1 for other in ordered[:place] if other.id not in given)
                run_status.write_reason(run, _reason(waiting[run], kinds, taken, before))

    def _start(self, run: RunDir) -> None:
        """Start a process that starts the run, unless there is such a process."""
        starter = self._starters.get(run.id)
        if starter is not None and starter.poll() is None:
            return
        if lock.is_locked(queue.starter_lock(run)):
            return  # an earlier process of ours has begun it
        queued = queue.waiting(run)
        if queued is None or run_status.read_status(run).state.final:
            return  # it has done so
        if queued.tries >= _TRIES:
            what = f"the process that starts the run was killed {queued.tries} times"
            fix = "look for the killer in the system's log"
            run_status.conclude_error(run, LaunchError(what, fix=fix))
            return
        queue.note(run, queued._replace(tries=queued.tries + 1))
        words = [sys.executable, "-m", _STARTER, run.id]
        environ = {**queue.environment_of(run), "SHANTY_HOME": str(self._home)}
        self._starters[run.id] = queue.spawn(words, environ, self._home)


def _taken(present: Sequence[RunDir]) -> dict[str, bool]:
    """The machines with a run on them, and whether all of these share."""
    taken: dict[str, bool] = {}
    for run in present:
        machines = machines_of(run)
        job = read_job(run) if machines else None
        for machine in machines:
            taken[machine] = taken.get(machine, True) and job is not None and job.share
    return taken


def _reason(
    job: JobSpec, kinds: Mapping[str, Mapping[str, str]], taken: Mapping[str, bool], before: int
) -> str:
    parts = []
    for name, count in job.machines:
        free = sum(machine not in taken for machine in kinds[name])
        parts.append(f"{count} of {name} ({free} of {len(kinds[name])} free)")
    queue = f"; {before} {'run waits' if before == 1 else 'runs wait'} before it" if before else ""
    return f"for machines: {' and '.join(parts)}{queue}"


def main() -> None:
    """Serve the queue until nothing waits, unless another process does."""
    place = home(os.environ)
    held = lock.take(queue.process_lock(place))
    if held is not None:
        Scheduler(place, held).run()


if __name__ == "__main__":
    main()
