"""Holds what most callers need: the home, the settings, targets and runs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shanty.launch import settings
from shanty.launch.settings import Settings
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import CONTINUES, home

if TYPE_CHECKING:
    from shanty.client.progress import Progress
    from shanty.launch.index import Runs
    from shanty.launch.machines.types import MachineType
    from shanty.launch.targets.registry import Targets
    from shanty.runtime.rundir import RunDir
    from shanty.runtime.site import Host
    from shanty.runtime.spec import JobSpec


@dataclass
class Context:
    """Read from the environment when first asked for."""

    environ: dict[str, str]

    @cached_property
    def home(self) -> Path:
        """Return the folder of all that shanty keeps."""
        return home(self.environ)

    @cached_property
    def settings(self) -> Settings:
        """Return the user's settings."""
        return settings.load(self.home)

    @cached_property
    def progress(self) -> Progress:
        """Return what shows how far the hosts are prepared."""
        from shanty.client.progress import Progress

        return Progress()

    @cached_property
    def targets(self) -> Targets:
        """Return the targets: where runs go."""
        from shanty.launch.targets.base import Surroundings
        from shanty.launch.targets.registry import Targets

        here = Surroundings(
            self.home,
            self.environ,
            self.settings,
            lambda text: self.progress(text),
            lambda text: self.progress.finding(text),
            terminal=at_terminal(),
        )
        return Targets(here)

    @cached_property
    def runs(self) -> Runs:
        """Return the runs that there are."""
        from shanty.launch.index import Runs

        return Runs(self.home, self.targets)

    def hosts_of(self, on: str) -> tuple[Host, ...]:
        """Return the hosts that a value of `--on` names; NotFoundError for an unknown group."""
        from shanty.launch import inventory

        return inventory.resolve(on, self.home)

    def machine_type(self, name: str) -> MachineType:
        """Return the machine type of that name; NotFoundError for an unknown one."""
        from shanty.launch.machines import types

        return types.load(name, self.home)

    def job_of(self, run: RunDir) -> JobSpec:
        """Return what a run was asked for; NotFoundError where its file is damaged."""
        from shanty.launch.index import read_job

        job = read_job(run)
        if job is None:
            raise NotFoundError(f"{run.job} is missing or damaged, so its job is not known")
        return replace(job, env={key: job.env[key] for key in job.env if key != CONTINUES})


def at_terminal() -> bool:
    """Return true where a person can be asked."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def context() -> Context:
    """Return the context of this process."""
    return Context(dict(os.environ))


def folder_is_gone() -> NotFoundError:
    """Return the error for a current folder that has been deleted."""
    return NotFoundError(
        "the current folder no longer exists",
        "it was deleted, or another folder was put in its place",
        "cd to a folder that exists",
    )


def note(text: str) -> None:
    """Print a message for the user, apart from the output of the ranks."""
    print(f"shanty: {text}", file=sys.stderr, flush=True)
