"""What every target can do. Targets keep no state: the run directory is the truth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from shanty.launch.settings import Settings
from shanty.runtime.plan import Limits
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Status


def _unheard(_text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a target works with: its user's home folder of shanty, environment and settings.

    `say` hears what is being done, `warn` what is not as it should be; `terminal` is true where
    ssh may ask a person for something.
    """

    home: Path
    environ: Mapping[str, str]
    settings: Settings
    say: Callable[[str], None] = _unheard
    warn: Callable[[str], None] = _unheard
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Handle:
    """A run that was submitted; all else about it is in its directory."""

    run: RunDir


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a run's file: its bytes and the offset at which to read on."""

    data: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Stacks:
    """Ask for the Python stack of every rank."""

    def to_json(self) -> dict[str, Any]:
        """What the lead reads."""
        return {"kind": "stacks"}


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask a run to end: SIGTERM, and SIGKILL after `grace` seconds."""

    grace: float

    def to_json(self) -> dict[str, Any]:
        """What the lead reads."""
        return {"kind": "stop", "grace": self.grace}


@dataclass(frozen=True, slots=True)
class Reply:
    """What the controller answered; `data` holds the stacks."""

    ok: bool
    error: str = ""
    data: list[dict[str, Any]] = field(default_factory=list)


class Planned(Protocol):
    """A job that could be run now."""

    takes_long: ClassVar[bool]  # hosts have to be prepared first

    @property
    def raw(self) -> bool:
        """True where the user's own line starts the launcher."""

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""

    def render(self) -> str:
        """What would be run, for a person to read."""

    def submit(self, stdin: int) -> Handle:
        """Write the run down and start its agents; `stdin` is what rank 0 will read."""


class Target(Protocol):
    """A place where runs go."""

    scheme: ClassVar[str]

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find out what is there for `job` and decide what can be decided; nothing is touched.

        PrepareError when its MPI or Python is not there, UsageError when it cannot fit.
        """

    def describe(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand now, all of them looked at at once.

        One that waits for its hosts is PENDING, with a reason; one whose agents are gone and that
        nobody knows of any more is LOST, with the cause.
        """

    def cancel(self, handle: Handle, grace: float) -> Reply:
        """End a run: SIGTERM, and SIGKILL after `grace` seconds; one that has ended is no error."""

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Ask the controller."""


def limits_of(job: JobSpec, settings: Settings) -> Limits:
    """What bounds a run, by its job and by what its user has set for good."""
    return Limits(
        log_limit=settings.log_limit,
        grace=settings.stop_grace,
        start_timeout=job.start_timeout,
        time_limit=job.time_limit,
        on_stall=job.on_stall or settings.on_stall,
        stall_after=settings.stall_after if job.stall_after is None else job.stall_after,
        retries=job.retries,
    )
