"""The machine at which the command is typed: a cluster of one host."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import shanty
from shanty.launch import interpreter, mpis
from shanty.launch.targets.base import Chunk, Handle, Reply, Stacks, Stop, Surroundings, limits_of
from shanty.runtime import platform
from shanty.runtime.agent import control
from shanty.runtime.errors import NotFoundError, StorageError
from shanty.runtime.localhost import free_port
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import AttemptSettings, leftovers, resolve, shim_scripts
from shanty.runtime.rundir import RunDir, storage_errors, write_json
from shanty.runtime.spec import JobSpec, Raw, Status

_CHUNK = 1 << 18
_PACKAGES = str(Path(shanty.__file__).parent.parent)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a survey of this machine found: cores that may be used, MPI and Python."""

    cores: int
    installation: Installation
    python: str


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """A job as it will be run here; `hostfile` is the text of its host file."""

    job: JobSpec
    plan: Plan
    hostfile: str
    run: RunDir
    takes_long: ClassVar[bool] = False

    @property
    def raw(self) -> bool:
        """True where the user's own line starts the launcher."""
        return self.plan.raw

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.plan.attempt.ranks

    def render(self) -> str:
        """What would be run, for a person to read and to paste."""
        node, layout = self.plan.lead, self.plan.attempt.layout
        installation = node.installation
        title = FLAVOURS[installation.flavour].title
        exports = {
            **node.environment.default,
            "HOSTFILE": layout.hostfile,
            **self.job.env,
        }
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

    def submit(self, stdin: int) -> Handle:
        """Write the run down and start its controller, in a session of its own."""
        job, run = self.job, self.run
        if not Path(job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {job.workdir}", "the job is to run in it")
        shared = {**self.plan.attempt.shared, "MASTER_PORT": str(free_port())}
        plan = self.plan._replace(attempt=self.plan.attempt._replace(shared=shared))
        write_down(job, plan, run, self.hostfile)
        try:
            control.start_agents(run, plan, job.workdir, stdin)
        except StorageError:
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            raise
        return Handle(run)


class LocalTarget:
    """Runs on this machine, for the user whose `home` and `environ` are given."""

    scheme: ClassVar[str] = "local"

    def __init__(self, here: Surroundings) -> None:
        self.here = here

    def plan(self, job: JobSpec, run: RunDir) -> LocalPlan:
        """Find out what is there for `job` and decide everything; nothing is touched."""
        return self.plan_on(survey(job, self.here), job, run)

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
        plan = Plan(
            id=run.id,
            created=time.time(),
            raw=isinstance(job.command, Raw),
            limits=limits_of(job, settings),
            leftovers=leftovers(facts.installation),
            scratch=scratch,
            scripted=False,
            attempt=attempt,
        )
        hostfile = FLAVOURS[facts.installation.flavour].hostfile(attempt.layout.hosts)
        return LocalPlan(job, plan, hostfile, run)

    def describe(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand, as their directories say; a run without agents is LOST."""
        return {handle: control.status_of(handle.run) for handle in handles}

    def fetch(self, handle: Handle, path: PurePosixPath, offset: int) -> Chunk:
        """The next piece of one of the run's files."""
        try:
            with (handle.run.path / path).open("rb") as file:
                file.seek(offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            data = b""
        return Chunk(data, offset + len(data))

    def cancel(self, handle: Handle, grace: float) -> Reply:
        """End the run; one that has ended is no error."""
        return self.ask(handle, Stop(grace))

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Leave a request for the controller, wake it and wait for its answer."""
        reply = control.ask(handle.run, request.to_json())
        return Reply(reply["ok"], reply.get("error", ""), reply.get("stacks", []))


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


def write_down(job: JobSpec, plan: Plan, run: RunDir, hostfile: str = "") -> None:
    """Make the run's directory, with all that its agents read; none is left where that fails."""
    run.create()
    try:
        with storage_errors(run.path):
            write_json(run.job, job.to_json())
            run.hostfile.write_text(hostfile)
            write_json(run.plan, plan.to_json())
            for name, text in shim_scripts(plan.lead, raw=plan.raw, workers=False).items():
                shim = run.bin / name
                shim.write_text(text)
                shim.chmod(0o755)
            status = Status(created=time.time(), ranks=plan.attempt.ranks)
            write_json(run.status, status.to_json())
    except StorageError:
        shutil.rmtree(run.path, ignore_errors=True)
        raise


def _mpi4py() -> str:
    """The mpi4py of this interpreter, as FOLDER|CACHE_TAG; "" where it has none."""
    found = importlib.util.find_spec("mpi4py")
    if not found or not found.origin:
        return ""
    return f"{Path(found.origin).parent.parent}|{sys.implementation.cache_tag}"
