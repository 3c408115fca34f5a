"""What every target can do. Targets keep no state: the run directory is the truth."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, Protocol, TypeVar

from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Status


@dataclass(frozen=True, slots=True)
class Facts:
    """What a survey found: hosts with their slots, the fewest cores of any, MPI and Python."""

    hosts: tuple[HostSlots, ...]
    cores: int
    installation: Installation
    python: str


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


class Rendered(Protocol):
    """A plan: what a dry run prints."""

    def render(self) -> str:
        """The plan as text for a person."""


P = TypeVar("P", bound=Rendered)


class Target(Protocol[P]):
    """A place where runs go."""

    scheme: ClassVar[str]

    def survey(self, job: JobSpec) -> Facts:
        """Find out what is there for `job`; PrepareError when its MPI or Python is not."""

    def plan(self, job: JobSpec, facts: Facts, run: RunDir) -> P:
        """Decide everything, without touching anything; UsageError when it cannot fit."""

    def submit(self, job: JobSpec, plan: P, run: RunDir, stdin: int) -> Handle:
        """Write the run down and start its agent; `stdin` is what rank 0 will read."""

    def poll(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand now; one whose agents are gone is LOST, with the cause."""

    def fetch(self, handle: Handle, path: PurePosixPath, offset: int) -> Chunk:
        """What the file `path` of the run holds from `offset` on; empty when nothing yet."""

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Ask the controller; stopping a run that has ended is no error."""
