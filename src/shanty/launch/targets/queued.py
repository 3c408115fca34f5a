"""Targets whose hosts come later: a queue gives them, hours after the run was submitted.

The queue's hosts and this machine share a file system. What is known of the queue itself is a
`Queue`; all else about such a run is here, and in `runtime/agent/attempts.py`.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from shanty.launch.targets.base import Planned, Reply, Surroundings, plan_of, scratch_of
from shanty.launch.targets.local import ask_here, node_of_this_machine, survey, write_down
from shanty.runtime.agent import control
from shanty.runtime.errors import STOPPED_EXIT, LostError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Attempt, Plan
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import Failure, JobSpec, State, Status

_FORGOTTEN = 10.0  # seconds for the agents to have the last word after the queue has forgotten


@dataclass(frozen=True, slots=True)
class Entry:
    """What a queue knows of a run: whether it `waits` for hosts, and why."""

    waits: bool
    reason: str = ""


class Queue(Protocol):
    """What is to be written for a queue."""

    scheme: ClassVar[str]

    def enqueue(self, run: RunDir, job: JobSpec, start: Sequence[str]) -> str:
        """Ask for hosts for `job`; returns the name by which the queue knows the run.

        When they have come, `hosts.json` is to be written into the run's directory (see
        `runtime/agent/attempts.py`), and `start` run on the first of them.
        """

    def look(self, names: Collection[str]) -> Mapping[str, Entry]:
        """What the queue knows of these runs, asked all at once; those it has forgotten are left
        out."""

    def dequeue(self, name: str) -> None:
        """Take a run out of the queue, and its hosts from it if it has any."""


@dataclass(frozen=True)
class QueuedPlan(Planned):
    """A job before it has hosts: what is asked for."""

    queue: Queue
    plan: Plan

    def render(self) -> str:
        """What is asked for, for a person to read."""
        node = self.plan.lead
        title = FLAVOURS[node.installation.flavour].title
        return "\n".join(
            [
                f"# MPI     {title} {node.installation.version} ({node.installation.prefix})",
                f"# hosts   as {self.queue.scheme} gives them",
                f"# ranks   {self.ranks or 'as the hosts have slots'}",
                f"# python  {node.python}",
                f"cd {shlex.quote(self.job.workdir)}",
                shlex.join(self.job.words()),
            ]
        )

    def _submit(self, stdin: int) -> None:
        """Write the run down and queue it; its ranks read no standard input."""
        del stdin
        run, start = self.run, [*self.plan.lead.boot, "agent.start", str(self.run.path)]
        write_down(self.job, self.plan, run)
        site = {"target": self.queue.scheme, "name": ""}
        try:
            write_json(run.site, site)  # from now on it is this target's to judge
            site["name"] = self.queue.enqueue(run, self.job, start)
            write_json(run.site, site)
        except BaseException:  # Ctrl-C too
            if site["name"]:
                self.queue.dequeue(site["name"])
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            raise


class QueuedTarget:
    """Runs on the hosts that a queue gives."""

    def __init__(self, here: Surroundings, queue: Queue) -> None:
        self.here = here
        self.queue = queue

    def plan(self, job: JobSpec, run: RunDir) -> QueuedPlan:
        """Find MPI and Python, which the hosts have at the same paths; the layout comes later."""
        node = node_of_this_machine(survey(job, self.here), job, run, scratch_of(run))
        attempt = Attempt((node,), (), {"ranks": job.ranks}, {}, {}, {})
        plan = plan_of(job, run, self.here.settings, attempt, waits=True)
        return QueuedPlan(job, run, self.queue, plan)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand: while one waits, by the word of its queue, asked once for all."""
        found = {run: control.read_status(run) for run in runs}
        names = {run: _name(run) for run, status in found.items() if not status.state.final}
        names = {run: name for run, name in names.items() if name}  # others are being queued
        known = self.queue.look(list(names.values())) if names else {}
        for run, name in names.items():
            entry, status = known.get(name), found[run]
            if entry is not None and entry.waits:
                found[run] = replace(status, state=State.PENDING, reason=entry.reason)
            elif entry is None and not control.has_agents_here(run):
                found[run] = self._forgotten(run, status)
        return found

    def _forgotten(self, run: RunDir, status: Status) -> Status:
        """The queue knows nothing of the run: either it is about to end, or it is lost."""
        latest = max(path.stat().st_mtime for path in (run.status, run.events) if path.exists())
        if time.time() < latest + _FORGOTTEN:
            return status
        failure = Failure(
            f"{self.queue.scheme} no longer knows the run, and its agents are gone",
            "its hosts were taken back, or it was taken out of the queue",
            "run again",
        )
        return control.conclude(run, State.LOST, failure, LostError.exit_code)

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, with SIGKILL after `grace` seconds; one that waits leaves the queue."""
        state = self.describe([run])[run].state
        if state.final:
            return Reply(True, "the run has ended")
        if state is not State.PENDING:
            return ask_here(run, kind="stop", grace=grace)
        if not _name(run):
            return Reply(False, "the run is being queued")
        self.queue.dequeue(_name(run))
        control.conclude(run, State.STOPPED, None, STOPPED_EXIT)
        return Reply(True)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        if self.describe([run])[run].state is State.PENDING:
            return Reply(False, "the run has no hosts yet")
        return ask_here(run, kind="stacks")


def _name(run: RunDir) -> str:
    return str((read_json(run.site) or {}).get("name", ""))
