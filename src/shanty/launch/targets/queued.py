"""Targets whose hosts come later: a queue gives them, hours after the run was submitted.

The queue's hosts and this machine share a file system. What is known of the queue itself is a
`Queue`; all else about such a run is here, in `runtime/agent/queued.py` (how it stands) and in
`runtime/agent/attempts.py` (how it begins).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shanty.launch.settings import Settings
from shanty.launch.targets.base import Planned, Reply, Surroundings, plan_of, run_folder, scratch_of
from shanty.launch.targets.local import node_of_this_machine, survey, write_down
from shanty.runtime.agent.queued import Entry, Looked, QueuedRuns
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Attempt, Node, Plan
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import JobSpec, Status

__all__ = ["Entry", "Queue", "QueuedPlan", "QueuedTarget", "waiting_plan"]


class Queue(Looked, Protocol):
    """What is to be written for a queue: `look` and `dequeue` of `Looked`, and `enqueue`."""

    def enqueue(self, run: RunDir, job: JobSpec, start: Sequence[str]) -> str:
        """Ask for hosts for `job`; returns the name by which the queue knows the run.

        When they have come, `hosts.json` is to be written into the run's directory (see
        `runtime/agent/attempts.py`), and `start` run on the first of them.
        """


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
        run, start = self.run, [*self.plan.lead.host_boot, "agent.start", str(self.run.path)]
        site = {"target": self.queue.scheme, "name": ""}
        with run_folder(run, self.job, self.plan.attempt.ranks):
            write_down(self.plan, run)
            try:
                write_json(run.site, site)  # from now on it is this target's to judge
                site["name"] = self.queue.enqueue(run, self.job, start)
                write_json(run.site, site)
            except BaseException:  # Ctrl-C too
                if site["name"]:
                    self.queue.dequeue(site["name"])
                raise


def waiting_plan(job: JobSpec, run: RunDir, settings: Settings, node: Node) -> Plan:
    """The plan of a run whose hosts will all be as `node`."""
    given, real = node.mpi["prefix"], os.path.realpath(node.mpi["prefix"])
    found = {  # what starts by one name of a folder must not be told another one
        key: real + value[len(given) :] if value.startswith(given) else value
        for key, value in node.mpi.items()
    }
    node = node._replace(mpi=found)
    attempt = Attempt((node,), (), {"ranks": job.ranks}, {}, {}, {})
    return plan_of(job, run, settings, attempt, waits=True)


class QueuedTarget:
    """Runs on the hosts that a queue gives."""

    def __init__(self, here: Surroundings, queue: Queue) -> None:
        self.here = here
        self.queue = queue
        self.runs = QueuedRuns(queue)

    def plan(self, job: JobSpec, run: RunDir) -> QueuedPlan:
        """Find MPI and Python, which the hosts have at the same paths; the layout comes later."""
        node = node_of_this_machine(survey(job, self.here), job, run, scratch_of(run))
        plan = waiting_plan(job, run, self.here.settings, node)
        return QueuedPlan(job, run, self.queue, plan)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand: while one waits, by the word of its queue, asked once for all."""
        return self.runs.describe(runs)

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, with SIGKILL after `grace` seconds; one that waits leaves the queue."""
        return Reply(**self.runs.cancel(run, grace))

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return Reply(**self.runs.stacks(run))
