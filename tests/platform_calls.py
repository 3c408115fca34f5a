"""What other platforms' command lines make, without starting or fetching anything."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shanty.client.context import Context
from shanty.client.terminal import start as start_module
from shanty.launch.content import sources
from shanty.launch.machines import types
from shanty.launch.machines.types import MachineType
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec

ID = "20240101-000001-bcdf"
TYPES = {"p2.xlarge": "local", "small": "local", "pods": "k8s"}


class Made:
    """What was started: jobs, and the environment that goes with them; and what was fetched."""

    def __init__(self) -> None:
        self.jobs: list[JobSpec] = []
        self.how: dict[str, Any] = {}
        self.environ: dict[str, str] = {}
        self.fetched: list[tuple[str, Any]] = []

    @property
    def job(self) -> JobSpec:
        (found,) = self.jobs
        return found


def watch(home: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Machine types, and in place of starting and fetching only what is to be done."""
    for name, on in TYPES.items():
        types.save(MachineType(name, on), home)
    found = Made()

    def start(here: Context, job: JobSpec, _show: object, **how: Any) -> int:
        found.jobs.append(job)
        found.how, found.environ = how, here.environ
        run = RunDir(here.home / "runs" / ID)
        run.path.mkdir(parents=True, exist_ok=True)
        how["submitted"](run)
        return 0

    def fetch(source: str, home: Path, _say: object, login: Any = None) -> Path:
        found.fetched.append((source, login))
        folder = home / "fetched"
        (folder / "examples").mkdir(parents=True, exist_ok=True)
        return folder

    monkeypatch.setattr(start_module, "start", start)
    monkeypatch.setattr(sources, "open_workspace", fetch)
    return found


def plainly(job: JobSpec) -> dict[str, Any]:
    """The fields of a job, its command as the first of its words."""
    values = asdict(job)
    return {**values, "command": job.words()[0]}
