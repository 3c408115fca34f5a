"""Starts one run on the machines that it has got: `python -m …queue.starter RUN_ID`.

It may be killed at any time: who comes after it finds out how far it came.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from shanty.launch import settings
from shanty.launch.cluster import connect
from shanty.launch.index import read_job
from shanty.launch.machines import queue, types
from shanty.launch.machines.types import LOCAL
from shanty.launch.network.survey import chosen
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.machines import on_machines
from shanty.launch.targets.registry import Targets
from shanty.runtime import platform
from shanty.runtime.agent import control
from shanty.runtime.errors import STOPPED_EXIT, LaunchError, LostError, ShantyError
from shanty.runtime.rundir import RunDir, home, write_json
from shanty.runtime.spec import Failure, JobSpec, State


class Stop(BaseException):
    """Somebody stops the run before it has begun."""


class Starter:
    """Starts one run; nothing where it is over or has begun."""

    def __init__(self, run: RunDir, place: Path) -> None:
        self._run = run
        self._home = place
        own = settings.load(place)
        self._grace = own.stop_grace
        self._targets = Targets(Surroundings(place, dict(os.environ), own))

    def start(self) -> None:
        """Do all that is to be done for the run from where it stands."""
        run, site, job = self._run, queue.site_of(self._run), read_job(self._run)
        if site is None or job is None or control.read_status(run).state.final:
            return
        for name in job.secrets:  # the targets have them; what is started inherits the rest
            os.environ.pop(name, None)
        signal.signal(signal.SIGTERM, _stop)
        try:
            on = self._place(job, site["machines"])
            if site.get("begins") and self._has_begun(on):
                self._adopt(on)
            else:
                self._begin(on)
        except Stop:
            control.conclude(run, State.STOPPED, None, STOPPED_EXIT)
        except ShantyError as error:
            control.conclude(
                run,
                State.LOST if isinstance(error, LostError) else State.FAILED,
                Failure(error.what, error.why, error.fix),
                error.exit_code,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has to end
            traceback.print_exc()
            what = f"the run could not be started: {type(error).__name__}: {error}"
            fix = f"this is a bug of shanty's: please report {self._home}/machines/scheduler.log"
            control.conclude(run, State.FAILED, Failure(what, "", fix), LaunchError.exit_code)

    def _place(self, job: JobSpec, machines: list[str]) -> JobSpec:
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
            agents = control.has_agents_here(self._run) or self._run.agents.exists()
            return agents or bool(platform.with_argument(str(self._run.path)))
        (client,) = connect.connect(chosen(on.on, None, self._home)[:1], terminal=False)
        try:
            return not client.ask("heartbeat-age", run=self._run.id, index=0).values["left"]
        finally:
            client.close(0.5)

    def _adopt(self, on: JobSpec) -> None:
        """Take the run for one on its hosts, where it is."""
        site: dict[str, Any] = {"target": LOCAL}
        if on.on is not None:
            site = {"hosts": [asdict(host) for host in chosen(on.on, None, self._home)]}
        queue.begun(self._run, site)
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
    if not run.path.is_dir() or queue.take(queue.starter_lock(run)) is None:
        return
    write_json(queue.starter_record(run), control.agents_record(starter=os.getpid()))
    Starter(run, place).start()


if __name__ == "__main__":
    main(sys.argv[1])
