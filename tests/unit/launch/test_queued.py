"""Runs that a queue refuses, or is slow to take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plans import plan_of
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.queued import QueuedPlan, QueuedTarget, waiting_plan
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import JobSpec, Program, State


class SlowQueue:
    """A queue that looks at the run before it refuses it."""

    scheme = "slow"

    def __init__(self, home: Path) -> None:
        self.target = QueuedTarget(Surroundings(home, {}, Settings()), self)

    def enqueue(self, run: RunDir, *_: object) -> str:
        status = read_json(run.status) or {}
        write_json(run.status, {**status, "created": 0.0})  # it has been at it for long
        assert (read_json(run.site) or {})["target"] == self.scheme
        assert self.target.describe([run])[run].state is State.PENDING
        assert not self.target.cancel(run, 0.0).ok
        raise PrepareError("there is no such partition")

    def look(self, names: Any) -> dict[str, Any]:
        assert not names
        return {}

    def dequeue(self, name: str) -> None:
        raise AssertionError(f"{name!r} was never in the queue")


def test_a_run_that_the_queue_refuses_never_was(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "20240101-000001-bcdf")
    job = JobSpec(Program(("x",)), ranks=2, workdir=str(tmp_path))
    plan = QueuedPlan(job, run, SlowQueue(tmp_path), plan_of(2)._replace(waits=True))
    with pytest.raises(PrepareError, match="no such partition"):
        plan.submit(0)
    assert not run.path.exists()


def test_an_elastic_run_that_can_never_start_does_not_wait(tmp_path: Path) -> None:
    run, settings = RunDir(tmp_path / "x"), Settings()
    node = plan_of(2).lead
    job = JobSpec(Program(("x",)), ranks=2, workdir=str(tmp_path), elastic=3)
    with pytest.raises(UsageError, match=r"--elastic=3 needs more ranks|needs Open MPI 5"):
        waiting_plan(job, run, settings, node)
    mpich = node._replace(mpi={**node.mpi, "flavour": "mpich"})
    with pytest.raises(UsageError, match="needs Open MPI 5"):
        waiting_plan(replace(job, elastic=1), run, settings, mpich)
