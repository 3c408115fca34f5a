"""The machine at which the command is typed: a cluster of one host."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.machines import queue
from shanty.launch.package import FOLDER
from shanty.launch.provision.node import HostPlace, Ready, node_of
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
)
from shanty.launch.targets.elastic_support import HERE, Support
from shanty.runtime import addresses, platform, run_agents
from shanty.runtime.counted import counted
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import TENSORFLOW_1, agent_files, settled
from shanty.runtime.rundir import RunDir, storage_errors, write_files, write_json
from shanty.runtime.site import Site
from shanty.runtime.spec import JobSpec, Module, Script, Status

_PACKAGES = str(FOLDER.parent)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a survey of this machine found: cores that may be used, MPI and Python."""

    cores: int
    installation: Installation
    python: str


@dataclass(frozen=True)
class LocalPlan(Planned):
    """A job as it will be run here."""

    elastic: ClassVar[Support] = HERE
    plan: Plan

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.plan.attempt.ranks

    def outline(self) -> Outline:
        """What would be run, as lines to paste."""
        node, layout = self.plan.lead, self.plan.attempt.layout
        exports = {**node.environment.default, "HOSTFILE": layout.hostfile, **self.job.env}
        if self.job.tf1:
            exports[TENSORFLOW_1] = "1"
        hostfile, _ = agent_files(self.plan)["hostfile"]
        folder, command = in_workdir(self.job, self.plan.attempt.argv)
        heads = [
            mpi_head(node.installation),
            ("hosts", f"{node.address} ({counted(node.slots, 'slot')})"),
            ranks_head(layout.ranks, spares=self.job.spares),
            ("python", node.python),
        ]
        script = [
            folder,
            *(f"export {key}={shlex.quote(value)}" for key, value in exports.items()),
            f"cat > {shlex.quote(layout.hostfile)} <<'END'\n{hostfile}END",
            command,
        ]
        return Outline(heads, script)

    def _submit(self, stdin: int) -> None:
        job, run = self.job, self.run
        attempt, node = self.plan.attempt, self.plan.lead
        ports = addresses.ports_of_host(attempt, node)
        shared = {**attempt.shared, **addresses.variables(attempt, {node.number: ports})}
        plan = self.plan._replace(attempt=attempt._replace(shared=shared))
        start(job, plan, run, stdin)


class LocalTarget:
    """Runs on this machine, for the user whose `home` and `environ` are given."""

    scheme: ClassVar[str] = "local"

    def __init__(self, here: Surroundings) -> None:
        self.here = here

    def plan(self, job: JobSpec, run: RunDir) -> LocalPlan:
        """Find out what is there for `job` and decide everything; nothing is touched."""
        facts = survey(job, self.here)
        if job.log_to and isinstance(job.command, (Script, Module)):
            environ = {**self.here.environ, **job.env}
            interpreter.check_places(facts.python, job.log_to, job.workdir, environ)
        return self.plan_on(facts, job, run)

    def plan_on(self, facts: Facts, job: JobSpec, run: RunDir) -> LocalPlan:
        """Decide everything; UsageError or PrepareError when the job does not fit."""
        settings = self.here.settings
        scratch = f"{platform.scratch_root()}/{run.id[-11:]}"
        node = node_of_this_machine(facts, job, run, scratch)
        plan = plan_of(job, run, settings, [node], scratch=scratch)
        plan = settled(plan, job, [node], self.here.environ)
        if job.memory_per_rank or job.gpus_per_rank:
            from shanty.launch.doctor import this_machine

            this_machine.check_capacity(job, plan.attempt.ranks or 1)
        return LocalPlan(job, run, plan)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand, as their directories say; a run without agents is LOST."""
        return {run: run_agents.status_of(run) for run in runs}

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, unless the run has ended."""
        return ask_here(run, kind="stop", grace=grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return ask_here(run, kind="stacks")

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to every rank that catches it."""
        return ask_here(run, kind="warn", signal=number)


def ask_here(run: RunDir, **request: Any) -> Reply:
    """Leave a request for the controller, wake it and wait for its answer."""
    return Reply(**run_agents.ask(run, request))


def survey(job: JobSpec, here: Surroundings) -> Facts:
    """This machine's cores, and the MPI and Python that the job will use."""
    environ = {**here.environ, **job.env}
    return Facts(
        cores=platform.usable_cores(),
        installation=mpis.select(job.mpi, here.home, environ),
        python=interpreter.choose(job.python, Path(job.workdir), environ),
    )


def place_here(cores: int, job: JobSpec) -> HostPlace:
    """This machine as a host of a run."""
    slots = max(cores, job.processes or 0) if job.oversubscribe else cores
    limit = platform.limit_on_cores()
    return HostPlace(os.uname().nodename, "localhost", slots, cores, limit=limit)


def node_of_this_machine(
    facts: Facts, job: JobSpec, run: RunDir, scratch: str, ready: Ready | None = None
) -> Node:
    """This machine as a host of a run; `ready` is what its container has, if there is one."""
    if ready is None:
        ready = Ready(
            facts.installation,
            facts.python,
            _mpi4py(),
            job.workdir,
            agent_python=sys.executable,
            package=_PACKAGES,
            search_path=os.defpath,
        )
    shared_memory = platform.SHARED_MEMORY
    segments = f"{shared_memory}/{Path(scratch).name}" if shared_memory else ""
    return node_of(0, place_here(facts.cores, job), ready, str(run.path), segments)


def start(job: JobSpec, plan: Plan, run: RunDir, stdin: int) -> None:
    """Start a run's agents on this machine; `stdin` is what rank 0 will read."""
    with run_folder(run, job, plan.attempt.ranks):
        write_down(plan, run)
        queue.begins(run)
        run_agents.start_agents(run, plan, job.workdir, stdin, job.secrets)
        if queue.waiting(run) is not None:
            queue.begun(run, Site(LocalTarget.scheme))


def write_down(plan: Plan, run: RunDir) -> None:
    """Write all that its agents read into a run's folder."""
    with storage_errors(run.path):
        write_files(run, agent_files(plan))
        write_json(run.plan, plan.to_json())


def _mpi4py() -> str:
    """The mpi4py of this interpreter, as FOLDER|CACHE_TAG; "" where it has none."""
    found = importlib.util.find_spec("mpi4py")
    if not found or not found.origin:
        return ""
    return f"{Path(found.origin).parent.parent}|{sys.implementation.cache_tag}"
