"""What every target can do. Targets keep no state: a run is its directory, and that the truth."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from shanty.launch.settings import Settings
from shanty.launch.surroundings import Surroundings as Surroundings  # part of what plug-ins use
from shanty.launch.targets.elastic_support import HERE, HOSTS, IMAGE, QUEUE, Support, described
from shanty.runtime import site
from shanty.runtime.counted import counted
from shanty.runtime.errors import LostError, NotFoundError, ShantyError, UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Attempt, Limits, Node, Plan
from shanty.runtime.resolve import agent_files, leftovers
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import RunDir, make_removable, read_json, storage_errors, write_json
from shanty.runtime.site import Host, Site
from shanty.runtime.spec import Failure, JobSpec, Raw, State, Status

if TYPE_CHECKING:
    from shanty.launch.doctor.check import Report


@dataclass(frozen=True, slots=True)
class Reply:
    """What the controller answered; `stacks` are those of all ranks, where they were asked for.

    After a signal: the ranks that it has `reached`, and those `without` a handler for it.
    """

    ok: bool
    error: str = ""
    stacks: list[dict[str, Any]] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    without: list[int] = field(default_factory=list)


class Outline(NamedTuple):
    """What would be run: `heads`, lines with a label each, and the lines of a shell script."""

    heads: Sequence[tuple[str, str]]
    script: Sequence[str]


def mpi_head(installation: Installation, where: str = "") -> tuple[str, str]:
    """The MPI of a run, and `where` the hosts have it from; its folder where that is left out."""
    title = f"{FLAVOURS[installation.flavour].title} {installation.version}"
    return "MPI", f"{title}, {where}" if where else f"{title} ({installation.prefix})"


def ranks_head(
    ranks: int | None, otherwise: str = "as the command says", spares: int = 0
) -> tuple[str, str]:
    """The number of ranks, or what decides it. spares: how many of them are some."""
    if not spares:
        return "ranks", str(ranks or otherwise)
    return "ranks", f"{ranks - spares if ranks else otherwise}, and {counted(spares, 'spare')}"


def in_workdir(job: JobSpec, argv: Sequence[str]) -> list[str]:
    """The lines that start `argv` in the folder of a job."""
    return [f"cd {shlex.quote(job.workdir)}", shlex.join(argv)]


@dataclass(frozen=True)
class Planned:
    """A job that could be run now, in the directory `run`."""

    job: JobSpec
    run: RunDir
    takes_long: ClassVar[bool] = False  # hosts have to be prepared first
    elastic: ClassVar[Support] = QUEUE  # what an elastic run outlives there

    @property
    def raw(self) -> bool:
        """True where the user's own line starts the launcher."""
        return isinstance(self.job.command, Raw)

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be, with spares; None where it is not known yet."""
        return self.job.processes

    def outline(self) -> Outline:
        """What would be run, in parts."""
        raise NotImplementedError

    def render(self) -> str:
        """What would be run, for a person to read."""
        outline = self.outline()
        heads = [f"# {label:<7} {value}" for label, value in outline.heads]
        if self.job.elastic is not None:
            contained = self.job.image and self.elastic in (HERE, HOSTS)
            heads.append(f"# elastic {described(IMAGE if contained else self.elastic)}")
        return "\n".join([*heads, *outline.script])

    def render_as(self, form: str) -> str:
        """The objects of a cluster that would be made, as yaml or json."""
        what = f"-o {form} is for Kubernetes, where a run has objects"
        raise UsageError(what, fix="add --on k8s")

    def submit(self, stdin: int) -> None:
        """Write the run down and start its agents; `stdin` is what rank 0 will read.

        The plan is dropped where this fails.
        """
        try:
            self._refuse_missing_folders()
            self._submit(stdin)
        except BaseException:
            self.drop()
            raise

    def _refuse_missing_folders(self) -> None:
        if not Path(self.job.workdir).is_dir():
            raise NotFoundError(f"folder {self.job.workdir} not found", "the job is to run in it")
        if self.job.inputs is not None and not Path(self.job.inputs).is_dir():
            raise NotFoundError(f"folder {self.job.inputs} not found", "it has the run's inputs")

    def _submit(self, stdin: int) -> None:
        raise NotImplementedError

    def stand_by(self) -> None:
        """Let the run know that this process starts the next attempt if its lead host is lost."""

    def hosts_left(self, status: Status) -> tuple[Host, ...]:
        """Return the hosts on which another run may go on after this end; none: it must not."""
        return ()

    def settle(self) -> None:
        """Wait for what cleans up after the run, where this process' end would cut it short."""

    def drop(self) -> None:
        """Close the connections to its hosts: it will not be submitted."""


class Target(Protocol):
    """A place where runs go."""

    scheme: ClassVar[str]

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find out what is there for `job` and decide what can be decided; nothing is touched.

        PrepareError when its MPI or Python is not there, UsageError when it cannot fit.
        """

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand now, all of them looked at at once.

        One that waits for its hosts is PENDING, with a reason; one whose agents are gone and that
        nobody knows of any more is LOST, with the cause.
        """

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End a run that is on: SIGTERM, and SIGKILL after `grace` seconds."""

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""


@runtime_checkable
class CanSignal(Protocol):
    """A target that can send signals to the ranks of a run."""

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to every rank that catches it, unless the run has ended."""


@runtime_checkable
class CanExamine(Protocol):
    """A target that the doctor examines by itself, since it has no hosts before a run."""

    def examine(self, job: JobSpec) -> Report:
        """Find what is wrong there for runs like `job`."""

    def sweep(self, job: JobSpec) -> list[str]:
        """Remove what runs of this machine have left there; return its names."""


def lost(run: RunDir, error: ShantyError) -> Status:
    """The status of a run whose hosts cannot be asked, because of `error`; nothing is written."""
    status = read_status(run)
    if status.state.final:
        return status
    failure = Failure(error.what, error.why, error.fix)
    return replace(status, state=State.LOST, failure=failure, exit_code=LostError.exit_code)


@contextlib.contextmanager
def run_folder(
    run: RunDir, job: JobSpec, ranks: int | None, where: Site | None = None
) -> Iterator[JobSpec]:
    """Make a run's folder, with its job and first status; removed where the block fails.

    `where` is written before the status: from then on the run is not taken for one of this
    machine. A run that has waited for machines has all that already, and keeps it. Yields the job
    as it is written down.
    """
    waited = run.job.exists()
    if not waited:
        run.create()
    try:
        if not waited:
            with storage_errors(run.path):
                job = _with_inputs(job, run)
                write_json(run.job, job.to_json())
                if where is not None:
                    site.write(run, where)
                write_json(
                    run.status, Status.new(ranks and ranks - job.spares, job.spares).to_json()
                )
        yield job
    except BaseException:  # Ctrl-C too
        if not waited:
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
        raise


def _with_inputs(job: JobSpec, run: RunDir) -> JobSpec:
    """The job with a copy of its inputs, which is put into the run's folder."""
    if job.inputs is None:
        return job
    shutil.copytree(job.inputs, run.inputs, symlinks=True)
    make_removable(run.inputs)
    return replace(job, inputs=str(run.inputs))


def plan_of(
    job: JobSpec,
    run: RunDir,
    settings: Settings,
    nodes: Sequence[Node],
    *,
    scratch: str = "",
) -> Plan:
    """The plan of a run before its hosts are settled; all of them will have the MPI of `nodes`.

    Without `scratch`, the hosts have a folder at one path, and scripts.
    """
    return Plan(
        id=run.id,
        created=time.time(),
        raw=isinstance(job.command, Raw),
        limits=Limits(
            log_limit=settings.log_limit,
            grace=settings.stop_grace,
            start_timeout=job.start_timeout,
            time_limit=job.time_limit,
            on_stall=job.on_stall or settings.on_stall,
            stall_after=settings.stall_after if job.stall_after is None else job.stall_after,
            retries=job.retries,
            alone=job.alone or settings.alone,
            elastic=job.elastic,
            spares=job.spares,
        ),
        leftovers=leftovers(nodes[0].installation),
        scratch=scratch or scratch_of(run),
        scripted=not scratch,
        attempt=Attempt(tuple(nodes), (), {"ranks": job.processes}, {}, {}, {}),
        waits=True,
    )


def begin_request(plan: Plan, job: JobSpec, run: RunDir) -> dict[str, Any]:
    """What the host that begins a run, or queues it, has to write down."""
    return {
        "run": run.id,
        "plan": plan.to_json(),
        "job": job.to_json(),
        "status": read_json(run.status) or {},
        "files": agent_files(plan),
    }


def scratch_of(run: RunDir) -> str:
    """The folder for temporary files, at the same path on every host."""
    return f"/tmp/shanty-{run.id[-11:]}"
