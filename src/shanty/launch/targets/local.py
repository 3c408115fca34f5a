"""The machine at which the command is typed: a cluster of one host."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import shanty
from shanty.launch import interpreter, mpis
from shanty.launch.machines import queue
from shanty.launch.targets.base import Planned, Reply, Surroundings, plan_of, run_folder
from shanty.runtime import addresses, platform
from shanty.runtime.agent import control
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import TENSORFLOW_1, AttemptSettings, resolve, shim_scripts
from shanty.runtime.rundir import RunDir, storage_errors, write_json
from shanty.runtime.spec import JobSpec, Module, Script, Status

_PACKAGES = str(Path(shanty.__file__).parent.parent)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a survey of this machine found: cores that may be used, MPI and Python."""

    cores: int
    installation: Installation
    python: str


@dataclass(frozen=True)
class LocalPlan(Planned):
    """A job as it will be run here; `hostfile` is the text of its host file."""

    plan: Plan
    hostfile: str

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.plan.attempt.ranks

    def render(self) -> str:
        """What would be run, for a person to read and to paste."""
        node, layout = self.plan.lead, self.plan.attempt.layout
        installation = node.installation
        title = FLAVOURS[installation.flavour].title
        exports = {**node.environment.default, "HOSTFILE": layout.hostfile, **self.job.env}
        if self.job.tf1:
            exports[TENSORFLOW_1] = "1"
        lines = [
            f"# MPI     {title} {installation.version} ({installation.prefix})",
            f"# hosts   {node.address} ({node.slots} slots)",
            f"# ranks   {layout.ranks or 'as the command says'}",
            f"# python  {node.python}",
            f"cd {shlex.quote(self.job.workdir)}",
            *(f"export {key}={shlex.quote(value)}" for key, value in exports.items()),
            f"cat > {shlex.quote(layout.hostfile)} <<'END'\n{self.hostfile}END",
            shlex.join(self.plan.attempt.argv),
        ]
        return "\n".join(lines)

    def _submit(self, stdin: int) -> None:
        job, run = self.job, self.run
        attempt, node = self.plan.attempt, self.plan.lead
        ports = addresses.ports_of_host(attempt, node)
        shared = {**attempt.shared, **addresses.variables(attempt, {node.number: ports})}
        plan = self.plan._replace(attempt=attempt._replace(shared=shared))
        start(job, plan, run, self.hostfile, stdin)


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
        attempt = resolve(
            job,
            [node],
            AttemptSettings(
                run=run.id,
                scratch=scratch,
                scripted=False,
                log_limit=settings.log_limit,
                given={**self.here.environ, **job.env},
            ),
        )
        if job.memory_per_rank or job.gpus_per_rank:
            from shanty.launch.doctor import this_machine

            this_machine.check_capacity(job, attempt.ranks or 1)
        plan = plan_of(job, run, settings, attempt, scratch=scratch)
        hostfile = FLAVOURS[facts.installation.flavour].hostfile(attempt.layout.hosts)
        return LocalPlan(job, run, plan, hostfile)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand, as their directories say; a run without agents is LOST."""
        return {run: control.status_of(run) for run in runs}

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run; one that has ended is no error."""
        return ask_here(run, kind="stop", grace=grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return ask_here(run, kind="stacks")

    def interrupt(self, run: RunDir) -> Reply:
        """Send SIGINT to every rank that catches it."""
        return ask_here(run, kind="warn", signal=signal.SIGINT.value)


def ask_here(run: RunDir, **request: Any) -> Reply:
    """Leave a request for the controller, wake it and wait for its answer."""
    return Reply(**control.ask(run, request))


def survey(job: JobSpec, here: Surroundings) -> Facts:
    """This machine's cores, and the MPI and Python that the job will use."""
    environ = {**here.environ, **job.env}
    return Facts(
        cores=platform.usable_cores(),
        installation=mpis.select(job.mpi, here.home, environ),
        python=interpreter.choose(job.python, Path(job.workdir), environ),
    )


def node_of_this_machine(facts: Facts, job: JobSpec, run: RunDir, scratch: str) -> Node:
    """This machine as a host of a run."""
    shared_memory = platform.SHARED_MEMORY
    return Node(
        number=0,
        name=os.uname().nodename,
        address="localhost",
        slots=max(facts.cores, job.ranks or 0) if job.oversubscribe else facts.cores,
        cores=facts.cores,
        run_dir=str(run.path),
        workdir=job.workdir,
        python=facts.python,
        agent_python=sys.executable,
        package=_PACKAGES,
        mpi=asdict(facts.installation),
        search_path=os.defpath,
        mpi4py=_mpi4py(),
        segments=f"{shared_memory}/{Path(scratch).name}" if shared_memory else "",
    )


def start(job: JobSpec, plan: Plan, run: RunDir, hostfile: str, stdin: int) -> None:
    """Start a run's agents on this machine; `stdin` is what rank 0 will read."""
    with run_folder(run, job, plan.attempt.ranks):
        write_down(plan, run, hostfile)
        queue.begins(run)
        control.start_agents(run, plan, job.workdir, stdin, job.secrets)
        if queue.site_of(run) is not None:
            queue.begun(run, {"target": LocalTarget.scheme})


def write_down(plan: Plan, run: RunDir, hostfile: str = "") -> None:
    """Write all that its agents read into a run's folder."""
    with storage_errors(run.path):
        run.hostfile.write_text(hostfile)
        write_json(run.plan, plan.to_json())
        for name, text in shim_scripts(plan.lead, raw=plan.raw, workers=False).items():
            shim = run.bin / name
            shim.write_text(text)
            shim.chmod(0o755)


def _mpi4py() -> str:
    """The mpi4py of this interpreter, as FOLDER|CACHE_TAG; "" where it has none."""
    found = importlib.util.find_spec("mpi4py")
    if not found or not found.origin:
        return ""
    return f"{Path(found.origin).parent.parent}|{sys.implementation.cache_tag}"
