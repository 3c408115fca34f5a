"""Runs on Slurm before any node has come: what is refused, and what ends by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shanty
from plans import MPI, node, plan_of
from runs import wait_for
from shanty.launch.provision.provision import Bring
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.slurm import SlurmTarget
from shanty.launch.targets.slurm_allocation import AllocationPlan
from shanty.launch.targets.slurm_login import LoginPlan, SlurmLogin
from shanty.launch.transport.rpc_client import Answer
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.queued_runs import Entry, QueuedRuns
from shanty.runtime.rundir import RunDir
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec, Program, Script, State

PACKAGES = str(Path(shanty.__file__).parent.parent)


class Running:
    """A queue in which the job of the allocation goes on."""

    scheme = "slurm"

    def look(self, names: Any, age: float = 0.0) -> dict[str, Entry]:
        return {name: Entry(False, "its nodes are there: n1") for name in names}

    def dequeue(self, name: str) -> None:
        raise AssertionError(f"{name} is the user's own job")


def in_allocation(home: Path, connection: list[str], **variables: str) -> AllocationPlan:
    """A run on the node n1, which `connection` reaches."""
    run = RunDir(home / ".shanty/runs/20240101-000001-bcdf")
    job = JobSpec(Program(("x",)), ranks=2, workdir=str(home), registry_password="env:MINE")
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", **variables}
    plan = plan_of(2)._replace(waits=True)
    lead = node(agent_python=sys.executable, package=PACKAGES)
    plan = plan._replace(attempt=plan.attempt._replace(nodes=(lead,)))
    hosts = [{"name": "n1", "slots": 2, "cores": 2, "connection": {"argv": connection}}]
    here = Surroundings(home / ".shanty", environ, Settings())
    return AllocationPlan(job, run, here, plan, hosts, 2)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("echo 'srun: error: n1: no such node' >&2", "srun: error: n1: no such node"),
        (
            "echo 'shanty: there is no Python' >&2; "
            "echo 'srun: error: n1: task 0: Exited with exit code 69' >&2",
            "shanty: there is no Python",
        ),
        ("", "ended with 1"),
    ],
)
def test_a_step_that_never_starts_agents(tmp_path: Path, says: str, why: str) -> None:
    plan = in_allocation(tmp_path, ["/bin/sh", "-c", f"{says}\nexit 1", "srun"])
    plan.submit(0)

    def status() -> Any:
        return QueuedRuns(Running()).describe([plan.run])[plan.run]

    wait_for(lambda: status().state.final, 20, "it waits for agents that never come")
    plan.settle()
    assert (status().state, status().exit_code) == (State.FAILED, 71)
    assert why in status().failure.why


def test_a_step_that_cannot_be_started(tmp_path: Path) -> None:
    plan = in_allocation(tmp_path, ["/no/such/srun"])
    plan.submit(0)
    plan.settle()
    (status,) = QueuedRuns(Running()).describe([plan.run]).values()
    assert status.state is State.FAILED
    assert status.failure is not None
    assert "/no/such/srun" in status.failure.why


def test_agents_in_an_allocation_get_no_password(tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", f"env > {tmp_path}/seen", "srun"]
    secret = {"SHANTY_REGISTRY_PASSWORD": "secret1", "MINE": "secret2", "OTHER": "kept"}
    plan = in_allocation(tmp_path, words, **secret)
    plan.submit(0)
    plan.settle()
    text = (tmp_path / "seen").read_text()
    assert "secret" not in text
    assert "OTHER=kept" in text


@pytest.mark.parametrize("on", ["slurm", "slurm:ann@login", None])
def test_an_image_for_the_lead_host_is_refused(tmp_path: Path, on: str | None) -> None:
    here = Surroundings(tmp_path, {"SLURM_JOB_ID": "7"}, Settings())
    job = JobSpec(Program(("x",)), on=on, image="a", master_image="b")
    with pytest.raises(UsageError, match="--master-image is not for Slurm"):
        SlurmTarget(here).plan(job, RunDir(tmp_path / "runs/20240101-000001-bcdf"))


@pytest.mark.parametrize(
    ("version", "bare", "refused"),
    [("3.9.2", False, True), ("3.99.0", False, False), ("3.9.2", True, False)],
)
def test_a_script_for_an_image_with_an_error_in_its_syntax(
    tmp_path: Path, version: str, bare: bool, refused: bool
) -> None:
    """A newer Python in the image may know what the one of here does not."""
    run = RunDir(tmp_path / "runs/20240101-000001-bcdf")
    job = JobSpec(Script("train.py"), on="slurm", image="x", workdir=str(tmp_path))
    (tmp_path / "train.py").write_text("x = 1\nfor in x\n")
    target = SlurmTarget(Surroundings(tmp_path, {}, Settings()))
    inside: Any = SimpleNamespace(bare=bare, client=SimpleNamespace(version=version))
    client: Any = None
    made = LoginPlan(job, run, target.login, client, MPI, Bring(MPI, sys.executable), (), (inside,))
    target.login.plan = lambda *_: made  # type: ignore[method-assign]
    if refused:
        with pytest.raises(UsageError, match=r"train\.py has an error in its syntax, line 2"):
            target.plan(job, run)
    else:
        assert target.plan(job, run) is made


# ------------------------------------------------------------------------------ a login node


class Login:
    """A login node whose connection breaks at the verb `breaks`, and is gone then."""

    host = Host("login")

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks
        self.asked: list[str] = []

    def ask(self, verb: str, **_args: Any) -> Answer:
        self.asked.append(verb)
        if self.breaks in self.asked:
            raise PrepareError("the connection to login is gone")
        return Answer({})

    def close(self, _patience: float) -> None:
        """It is gone."""


@pytest.mark.parametrize(
    ("breaks", "what"),
    [("slurm-submit", "may have queued the run"), ("survey", "connection to login is gone")],
)
def test_a_login_node_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str, what: str
) -> None:
    run = RunDir(tmp_path / "runs/20240101-000001-bcdf")
    job = JobSpec(Program(("x",)), ranks=2, workdir=str(tmp_path))
    login = SlurmLogin(Surroundings(tmp_path, {}, Settings()))
    if breaks == "slurm-submit":
        monkeypatch.setattr(login, "prepared", lambda _planned: node())
    client: Any = Login(breaks)
    planned = LoginPlan(job, run, login, client, MPI, Bring(MPI, "python"), ())
    with pytest.raises(PrepareError, match=what) as error:
        planned.submit(0)
    assert (f"shanty run {run.id}" in error.value.fix) == (breaks == "slurm-submit")
    assert not run.path.exists()
