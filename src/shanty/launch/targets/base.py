"""What every target can do. Targets keep no state: a run is its directory, and that the truth."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from shanty.launch.settings import KUBERNETES_KEYS, SLURM_KEYS, Settings
from shanty.runtime.agent.control import read_status
from shanty.runtime.errors import LostError, NotFoundError, ShantyError, UsageError
from shanty.runtime.plan import Attempt, Limits, Plan
from shanty.runtime.resolve import leftovers
from shanty.runtime.rundir import RunDir, make_removable, storage_errors, write_json
from shanty.runtime.spec import Failure, JobSpec, Raw, State, Status


def _unheard(_text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a target works with: its user's home folder of shanty, environment and settings.

    `say` hears what is being done, `warn` what is not as it should be; `terminal` is true where
    ssh may ask a person for something. `brings` is false where images are only looked at.
    """

    home: Path
    environ: Mapping[str, str]
    settings: Settings
    say: Callable[[str], None] = _unheard
    warn: Callable[[str], None] = _unheard
    terminal: bool = False
    brings: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """What the controller answered; `stacks` are those of all ranks, where they were asked for."""

    ok: bool
    error: str = ""
    stacks: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Planned:
    """A job that could be run now, in the directory `run`."""

    job: JobSpec
    run: RunDir
    takes_long: ClassVar[bool] = False  # hosts have to be prepared first

    @property
    def raw(self) -> bool:
        """True where the user's own line starts the launcher."""
        return isinstance(self.job.command, Raw)

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where it is not known yet."""
        return self.job.ranks

    def render(self) -> str:
        """What would be run, for a person to read."""
        raise NotImplementedError

    def render_as(self, form: str) -> str:
        """The objects of a cluster that would be made, as yaml or json."""
        what = f"-o {form} is for Kubernetes, where a run has objects"
        raise UsageError(what, fix="add --on k8s")

    def submit(self, stdin: int) -> None:
        """Write the run down and start its agents; `stdin` is what rank 0 will read."""
        if not Path(self.job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {self.job.workdir}", "the job is to run in it")
        if self.job.inputs is not None and not Path(self.job.inputs).is_dir():
            raise NotFoundError(f"there is no folder {self.job.inputs}", "it has the run's inputs")
        self._submit(stdin)

    def _submit(self, stdin: int) -> None:
        raise NotImplementedError

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
        """End a run: SIGTERM, and SIGKILL after `grace` seconds; one that has ended is no error."""

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""


@runtime_checkable
class CanInterrupt(Protocol):
    """A target that can interrupt the ranks of a run."""

    def interrupt(self, run: RunDir) -> Reply:
        """Send SIGINT to every rank that catches it; one that has ended is no error."""


def lost(run: RunDir, error: ShantyError) -> Status:
    """The status of a run whose hosts cannot be asked, because of `error`; nothing is written."""
    status = read_status(run)
    if status.state.final:
        return status
    failure = Failure(error.what, error.why, error.fix)
    return replace(status, state=State.LOST, failure=failure, exit_code=LostError.exit_code)


_QUEUES = {  # what has options of its own: its title, its scheme, the fields of JobSpec
    "slurm": ("Slurm", set(SLURM_KEYS)),
    "k8s": ("Kubernetes", {"nodes", *KUBERNETES_KEYS}),
}


def refuse_options(job: JobSpec, where: str, scheme: str = "") -> None:
    """Raise UsageError where a job has options for a queue that it does not go to.

    `scheme` is the queue that it does go to, `where` that for people.
    """
    plain = JobSpec(job.command)
    own = _QUEUES[scheme][1] if scheme else set()
    for other, (title, keys) in _QUEUES.items():
        for name in keys - own if other != scheme else ():
            if getattr(job, name) != getattr(plain, name):
                raise UsageError(
                    f"--{_FLAGS.get(name, name.replace('_', '-'))} is for {title}, and this run "
                    f"goes to {where}",
                    fix=f"add --on {other}, or leave it out",
                )


_FLAGS = {"tolerations": "toleration", "pull_secrets": "pull-secret", "labels": "k8s-label",
          "operator": "as"}  # fmt: skip


@contextlib.contextmanager
def run_folder(run: RunDir, job: JobSpec, ranks: int | None) -> Iterator[None]:
    """Make a run's folder, with its job and first status; removed where the block fails.

    One that has waited for machines has all that already, and keeps it.
    """
    waited = run.job.exists()
    if not waited:
        run.create()
    try:
        if not waited:
            with storage_errors(run.path):
                write_json(run.job, with_inputs(job, run).to_json())
                write_json(run.status, Status.new(ranks).to_json())
        yield
    except BaseException:  # Ctrl-C too
        if not waited:
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
        raise


def with_inputs(job: JobSpec, run: RunDir) -> JobSpec:
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
    attempt: Attempt,
    *,
    scratch: str = "",
    waits: bool = False,
) -> Plan:
    """The plan of a run. Without `scratch`, its hosts have a folder at one path, and scripts."""
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
        ),
        leftovers=leftovers(attempt.nodes[0].installation),
        scratch=scratch or scratch_of(run),
        scripted=not scratch,
        attempt=attempt,
        waits=waits,
    )


def scratch_of(run: RunDir) -> str:
    """The folder for temporary files, at the same path on every host."""
    return f"/tmp/shanty-{run.id[-11:]}"
