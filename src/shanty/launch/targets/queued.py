"""Targets whose hosts come later: a queue gives them, hours after the run was submitted.

The queue's hosts and this machine share a file system. What is known of the queue itself is a
`Queue`; all else about such a run is here, and in `runtime/agent/attempts.py`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

from shanty.launch.targets.base import Handle, Reply, Stacks, Stop, Surroundings, limits_of
from shanty.launch.targets.local import node_of_this_machine, survey, write_down
from shanty.runtime.agent import control
from shanty.runtime.errors import STOPPED_EXIT, LostError, NotFoundError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Attempt, Plan
from shanty.runtime.resolve import leftovers
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import Failure, JobSpec, Raw, State, Status

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


@dataclass(frozen=True, slots=True)
class QueuedPlan:
    """A job before it has hosts: what is asked for."""

    target: QueuedTarget
    job: JobSpec
    plan: Plan
    run: RunDir
    takes_long: ClassVar[bool] = False

    @property
    def raw(self) -> bool:
        """True where the user's own line starts the launcher."""
        return self.plan.raw

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where it is not known yet."""
        return self.job.ranks

    def render(self) -> str:
        """What is asked for, for a person to read."""
        node = self.plan.lead
        title = FLAVOURS[node.installation.flavour].title
        return "\n".join(
            [
                f"# MPI     {title} {node.installation.version} ({node.installation.prefix})",
                f"# hosts   as {self.target.queue.scheme} gives them",
                f"# ranks   {self.ranks or 'as the hosts have slots'}",
                f"# python  {node.python}",
                f"cd {shlex.quote(self.job.workdir)}",
                shlex.join(self.job.words()),
            ]
        )

    def submit(self, stdin: int) -> Handle:
        """Write the run down and queue it; its ranks read no standard input."""
        del stdin
        if not Path(self.job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {self.job.workdir}", "the job is to run in it")
        queue, run = self.target.queue, self.run
        write_down(self.job, self.plan, run)
        name = queue.enqueue(run, self.job, [*self.plan.lead.boot, "agent.start", str(run.path)])
        write_json(run.site, {"target": queue.scheme, "name": name})
        return Handle(run)


class QueuedTarget:
    """Runs on the hosts that a queue gives."""

    def __init__(self, here: Surroundings, queue: Queue) -> None:
        self.here = here
        self.queue = queue

    def plan(self, job: JobSpec, run: RunDir) -> QueuedPlan:
        """Find MPI and Python, which the hosts have at the same paths; the layout comes later."""
        facts = survey(job, self.here)
        settings = self.here.settings
        node = node_of_this_machine(facts, job, run, scratch := f"/tmp/shanty-{run.id[-11:]}")
        attempt = Attempt((node,), (), {"ranks": job.ranks}, {}, {}, {})
        plan = Plan(
            id=run.id,
            created=time.time(),
            raw=isinstance(job.command, Raw),
            limits=limits_of(job, settings),
            leftovers=leftovers(facts.installation),
            scratch=scratch,
            scripted=True,
            attempt=attempt,
            waits=True,
        )
        return QueuedPlan(self, job, plan, run)

    def describe(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand: while one waits, by the word of its queue, asked once for all."""
        found = {handle: control.read_status(handle.run) for handle in handles}
        names = {handle: _name(handle) for handle, s in found.items() if not s.state.final}
        known = self.queue.look(list(names.values())) if names else {}
        for handle, name in names.items():
            entry, status = known.get(name), found[handle]
            if entry is not None and entry.waits:
                found[handle] = replace(status, state=State.PENDING, reason=entry.reason)
            elif entry is None and not control.has_agents_here(handle.run):
                found[handle] = self._forgotten(handle, status)
        return found

    def _forgotten(self, handle: Handle, status: Status) -> Status:
        """The queue knows nothing of the run: either it is about to end, or it is lost."""
        run = handle.run
        latest = max(path.stat().st_mtime for path in (run.status, run.events) if path.exists())
        if time.time() < latest + _FORGOTTEN:
            return status
        failure = Failure(
            f"{self.queue.scheme} no longer knows the run, and its agents are gone",
            "its hosts were taken back, or it was taken out of the queue",
            "run again",
        )
        return control.conclude(run, State.LOST, failure, LostError.exit_code)

    def cancel(self, handle: Handle, grace: float) -> Reply:
        """End the run, with SIGKILL after `grace` seconds; one that waits leaves the queue."""
        status = self.describe([handle])[handle]
        if status.state.final:
            return Reply(True, "the run has ended")
        if status.state is not State.PENDING:
            return self.ask(handle, Stop(grace))
        self.queue.dequeue(_name(handle))
        control.conclude(handle.run, State.STOPPED, None, STOPPED_EXIT)
        return Reply(True)

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Ask the controller."""
        if self.describe([handle])[handle].state is State.PENDING:
            return Reply(False, "the run has no hosts yet")
        reply = control.ask(handle.run, request.to_json())
        return Reply(reply["ok"], reply.get("error", ""), reply.get("stacks", []))


def _name(handle: Handle) -> str:
    return str((read_json(handle.run.site) or {}).get("name", ""))
