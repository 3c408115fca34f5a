"""Machines by their type: a run gets free ones, or waits in a queue until there are.

The run is written down at once. A process of its own, the scheduler (`launch/scheduler`), gives it
machines and starts it. A command that asks about a waiting run starts the scheduler again if it is
gone. A run that has begun is like any other run on hosts, or on this machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from shanty.launch import lock
from shanty.launch.machines import queue, types
from shanty.launch.machines.allotment import fitting
from shanty.launch.machines.types import LOCAL, QUEUES, MachineType
from shanty.launch.options.known import refuse_foreign_options
from shanty.launch.targets.base import (
    Outline,
    Planned,
    Reply,
    Surroundings,
    in_workdir,
    run_folder,
)
from shanty.runtime import run_agents, run_status
from shanty.runtime.errors import STOPPED_EXIT, UsageError
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import JobSpec, State, Status

_HANDOVER = 60.0  # seconds for the process that starts a run to answer when it is to stop


@dataclass(frozen=True)
class WaitingPlan(Planned):
    """A job before it has machines: what it wants."""

    here: Surroundings
    kinds: tuple[MachineType, ...]
    takes_long: ClassVar[bool] = True

    def outline(self) -> Outline:
        """What would be waited for."""
        heads = [
            ("machines", f"{count} of {name}: {', '.join(kind.machines(self.here.home).values())}")
            for (name, count), kind in zip(self.job.machines, self.kinds, strict=True)
        ]
        return Outline(heads, in_workdir(self.job, self.job.words()))

    def _submit(self, stdin: int) -> None:
        """Write the run down, in the queue; its ranks read no standard input."""
        del stdin
        with queue.held(self.here.home), run_folder(self.run, self.job, self.ranks):
            queue.write_environment(self.run, self.here.environ)
            queue.note(self.run, queue.Queued())
        self.here.say("")
        queue.ensure_scheduler(self.here.home)


class MachinesTarget:
    """Runs on machines of some types; those of queues go there at once.

    `onwards` plans a job elsewhere, `cancel` ends a run that has begun.
    """

    scheme: ClassVar[str] = queue.TARGET

    def __init__(
        self,
        here: Surroundings,
        onwards: Callable[[JobSpec, RunDir], Planned],
        cancel: Callable[[RunDir, float], Reply],
    ) -> None:
        self.here = here
        self._onwards = onwards
        self._cancel = cancel

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Check that the types have so many machines; UsageError where they have not."""
        home = self.here.home
        if job.hostfile:
            raise UsageError(
                "--machines and --hostfile both say where", fix="leave one of them out"
            )
        kinds = tuple(types.load(name, home) for name, _ in job.machines)
        if any(kind.kind in QUEUES for kind in kinds):
            return self._queued(job, run, kinds)
        refuse_foreign_options(job, f"machines of the type {kinds[0].name}")
        if len({kind.kind for kind in kinds}) > 1:
            raise UsageError(
                "a run is on this machine or on hosts, not on both",
                f"the type {next(k.name for k in kinds if k.kind == LOCAL)} is this machine",
                "name this machine as a host for it, if it can be reached by ssh",
            )
        machines = {kind.name: list(kind.machines(home)) for kind in kinds}
        if fitting(job.machines, machines) is None:
            there = ", ".join(f"{name} has {len(each)}" for name, each in machines.items())
            wanted = " and ".join(f"{count} of {name}" for name, count in job.machines)
            raise UsageError(
                f"{wanted} are not available together",
                there,
                f"take fewer, or add machines: shanty machines add {kinds[0].name} --on …",
            )
        return WaitingPlan(job, run, self.here, kinds)

    def _queued(self, job: JobSpec, run: RunDir, kinds: tuple[MachineType, ...]) -> Planned:
        """Plan a job whose machines a queue gives, which has its own order of waiting."""
        if len({kind.name for kind in kinds}) > 1:
            raise UsageError(
                f"machines of the types {' and '.join(kind.name for kind in kinds)} are not "
                "available together",
                f"a queue ({kinds[0].on}) gives machines for the whole run",
                "take the same type for the master and the workers",
            )
        queue = kinds[0].kind
        for field, other in (("priority", "the queue's own options"), ("share", "another type")):
            if getattr(job, field):
                raise UsageError(
                    f"--{field} is for machines that shanty gives out",
                    f"those of the type {kinds[0].name} are given by {queue}",
                    f"use {other}",
                )
        return self._onwards(kinds[0].applied(job, sum(n for _, n in job.machines)), run)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand, as is written down; starts the scheduler if it is gone."""
        found = {run: run_status.read_status(run) for run in runs}
        if any(not status.state.final for status in found.values()):
            queue.ensure_scheduler(self.here.home)
        return found

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """Take the run out of the queue; a run that has begun meanwhile is ended."""
        with queue.held(self.here.home):
            queued = queue.waiting(run)
            if queued is not None:
                (run.path / queue.STOP).touch()
                if not queued.machines:
                    run_status.conclude(run, State.STOPPED, None, STOPPED_EXIT)
                    return Reply(True)
        if queued is None:
            return self._cancel(run, grace)
        deadline = time.monotonic() + _HANDOVER
        while time.monotonic() < deadline:
            queue.ensure_scheduler(
                self.here.home
            )  # which starts it again, if nobody does, to be stopped
            starter = read_json(queue.starter_record(run)) or {}
            if run_agents.is_alive(starter, "starter") and lock.is_locked(queue.starter_lock(run)):
                os.kill(starter["starter"]["pid"], signal.SIGTERM)
            if run_status.read_status(run).state.final:
                return Reply(True)
            if queue.waiting(run) is None:
                return self._cancel(run, grace)
            time.sleep(0.1)
        return Reply(False, "the process that starts the run does not answer")

    def stacks(self, run: RunDir) -> Reply:
        """Refuse: the run has no ranks yet."""
        return Reply(False, "the run has no machines yet")


def on_machines(job: JobSpec, machines: list[str]) -> JobSpec:
    """Return the job as it goes to these machines: of this machine, or of hosts, as for `--on`."""
    if machines == [LOCAL]:
        return replace(job, machines=())
    return replace(job, on=",".join(machines))
