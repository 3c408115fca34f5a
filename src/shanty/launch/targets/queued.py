"""Targets whose hosts come later: a queue gives them, hours after the run was submitted.

The queue's hosts and this machine share a file system. What is known of the queue itself is a
`Queue`; all else about such a run is here, in `runtime/queued_runs.py` (how it stands) and in
`runtime/controller/attempts.py` (how it begins).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shanty.launch.settings import Settings
from shanty.launch.targets.base import (
    Outline,
    Planned,
    Reply,
    Surroundings,
    in_workdir,
    mpi_head,
    plan_of,
    ranks_head,
    run_folder,
    scratch_of,
)
from shanty.launch.targets.local import node_of_this_machine, survey, write_down
from shanty.runtime import site
from shanty.runtime.plan import Node, Plan
from shanty.runtime.queued_runs import Entry, QueuedRuns, QueueQuery
from shanty.runtime.resolve import check_elastic
from shanty.runtime.rundir import RunDir
from shanty.runtime.site import Site
from shanty.runtime.spec import JobSpec, Status

__all__ = ["Entry", "Queue", "QueuedPlan", "QueuedTarget", "waiting_plan"]


class Queue(QueueQuery, Protocol):
    """What a queue has to implement: `look` and `dequeue` of `QueueQuery`, and `enqueue`."""

    def enqueue(self, run: RunDir, job: JobSpec, start: Sequence[str]) -> str:
        """Ask for hosts for `job`; returns the name by which the queue knows the run.

        Once there are hosts, `hosts.json` has to be written into the run's directory (see
        `runtime/controller/attempts.py`), and `start` has to be run on the first host.
        """


@dataclass(frozen=True)
class QueuedPlan(Planned):
    """A job before it has hosts: what is asked for."""

    queue: Queue
    plan: Plan

    def outline(self) -> Outline:
        """What is asked for."""
        node = self.plan.lead
        heads = [
            mpi_head(node.installation),
            ("hosts", f"as {self.queue.scheme} gives them"),
            ranks_head(self.ranks, "as the hosts have slots", self.job.spares),
            ("python", node.python),
        ]
        return Outline(heads, in_workdir(self.job, self.job.words()))

    def visible(self) -> Plan:
        """The plan with paths that the hosts see; what they would not see is copied."""
        return self.plan

    def _submit(self, stdin: int) -> None:
        """Write the run down and queue it; its ranks read no standard input."""
        del stdin
        run, plan = self.run, self.visible()
        start = [*plan.lead.host_boot, "agent.start", str(run.path)]
        where = Site(self.queue.scheme)
        with run_folder(run, self.job, plan.attempt.ranks):
            write_down(plan, run)
            try:
                site.write(run, where)  # from now on this target decides how it stands
                where = where._replace(name=self.queue.enqueue(run, self.job, start))
                site.write(run, where)
            except BaseException:  # Ctrl-C too
                if where.name:
                    self.queue.dequeue(where.name)
                raise


def waiting_plan(job: JobSpec, run: RunDir, settings: Settings, node: Node) -> Plan:
    """The plan of a run whose hosts will all be as `node`."""
    if job.elastic is not None:  # known now, and not only once the hosts are there
        check_elastic(job, node.installation.flavour, job.ranks)
    given, real = node.mpi["prefix"], os.path.realpath(node.mpi["prefix"])
    found = {  # a program that starts under one name of a folder must get that name
        key: real + value[len(given) :] if value.startswith(given) else value
        for key, value in node.mpi.items()
    }
    return plan_of(job, run, settings, [node._replace(mpi=found)])


class QueuedTarget:
    """Runs on the hosts that a queue gives."""

    def __init__(self, here: Surroundings, queue: Queue) -> None:
        self.here = here
        self.queue = queue
        self.runs = QueuedRuns(queue)

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find MPI and Python, which the hosts have at the same paths; the layout comes later."""
        node = node_of_this_machine(survey(job, self.here), job, run, scratch_of(run))
        plan = waiting_plan(job, run, self.here.settings, node)
        return QueuedPlan(job, run, self.queue, plan)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand; the queue is asked once for all that wait."""
        return self.runs.describe(runs)

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, with SIGKILL after `grace` seconds; a waiting run leaves the queue."""
        return Reply(**self.runs.cancel(run, grace))

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return Reply(**self.runs.stacks(run))

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to every rank that catches it."""
        return Reply(**self.runs.signal(run, number))
