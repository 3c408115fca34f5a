"""Starts one run on the machines that it has got: `python -m …scheduler.starter RUN_ID`.

It may be killed at any time: the next starter finds out how far it came.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from shanty.launch import lock, settings
from shanty.launch.index import read_job
from shanty.launch.machines import queue, types
from shanty.launch.machines.types import LOCAL
from shanty.launch.network.survey import chosen
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.machines import on_machines
from shanty.launch.targets.registry import Targets
from shanty.launch.transport import connect
from shanty.runtime import platform, run_agents, run_status
from shanty.runtime.errors import STOPPED_EXIT, LaunchError, ShantyError
from shanty.runtime.rundir import RunDir, home, write_json
from shanty.runtime.site import Site
from shanty.runtime.spec import JobSpec, State


class Stop(BaseException):
    """Somebody stops the run before it has begun."""


class Starter:
    """Starts one run, unless the run has begun or ended."""

    def __init__(self, run: RunDir, place: Path) -> None:
        self._run = run
        self._home = place
        own = settings.load(place)
        self._grace = own.stop_grace
        self._targets = Targets(Surroundings(place, dict(os.environ), own))

    def start(self) -> None:
        """Do all that is left to do for the run."""
        run, queued, job = self._run, queue.waiting(self._run), read_job(self._run)
        if queued is None or job is None or run_status.read_status(run).state.final:
            return
        for name in job.secrets:  # the targets have them; what is started inherits the rest
            os.environ.pop(name, None)
        signal.signal(signal.SIGTERM, _stop)
        try:
            on = self._place(job, queued.machines)
            if queued.begins and self._has_begun(on):
                self._adopt(on)
            else:
                self._begin(on)
        except Stop:
            run_status.conclude(run, State.STOPPED, None, STOPPED_EXIT)
        except ShantyError as error:
            run_status.conclude_error(run, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has to end
            traceback.print_exc()
            what = f"the run could not be started: {type(error).__name__}: {error}"
            fix = f"this is a bug of shanty's: please report {self._home}/machines/scheduler.log"
            run_status.conclude_error(run, LaunchError(what, fix=fix))

    def _place(self, job: JobSpec, machines: Sequence[str]) -> JobSpec:
        """The job as it goes to its machines; NotFoundError where a type is gone."""
        written = {}
        for name, _ in job.machines:
            written.update(types.load(name, self._home).machines(self._home))
        return on_machines(job, [written.get(each, each) for each in machines])

    def _begin(self, on: JobSpec) -> None:
        if self._is_to_stop:
            raise Stop
        plan = self._targets.plan(on, self._run)
        null = os.open(os.devnull, os.O_RDONLY)
        plan.submit(null)
        self._stop_if_asked()

    def _has_begun(self, on: JobSpec) -> bool:
        """Whether the lead host has the run already, from a process that was killed."""
        if on.on is None:
            agents = run_agents.has_agents_here(self._run) or self._run.agents.exists()
            return agents or bool(platform.with_argument(str(self._run.path)))
        (client,) = connect.connect(chosen(on.on, None, self._home)[:1], terminal=False)
        try:
            return not client.ask("heartbeat-age", run=self._run.id, index=0).values["left"]
        finally:
            client.close(0.5)

    def _adopt(self, on: JobSpec) -> None:
        """Write down that the run is on its hosts already."""
        where = Site(LOCAL)
        if on.on is not None:
            where = Site(hosts=tuple(chosen(on.on, None, self._home)))
        queue.begun(self._run, where)
        self._stop_if_asked()

    @property
    def _is_to_stop(self) -> bool:
        return (self._run.path / queue.STOP).exists()

    def _stop_if_asked(self) -> None:
        """End the run that has just begun, if that was asked for before."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._is_to_stop:
            with contextlib.suppress(ShantyError):
                self._targets.cancel(self._run, self._grace)


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop


def main(run_id: str) -> None:
    """Start the run of that id, unless another process does."""
    place = home(os.environ)
    run = RunDir(place / "runs" / run_id)
    if not run.path.is_dir() or lock.take(queue.starter_lock(run)) is None:
        return
    write_json(queue.starter_record(run), run_agents.agents_record(starter=os.getpid()))
    Starter(run, place).start()


if __name__ == "__main__":
    main(sys.argv[1])
