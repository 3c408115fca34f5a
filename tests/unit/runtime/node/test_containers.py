"""The engine's commands in which node agents are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plans import plan_of
from shanty.runtime.containers.container import Container
from shanty.runtime.controller import container_lead
from shanty.runtime.node import container_entry
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir

QUEUE = '{"job": "7", "nodes": "a[1-2],b"}'


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """One of an apptainer that writes down what it is to hand on."""
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/sh\nenv | grep ^APPTAINERENV_ > {tmp_path}/environment\n")
    program.chmod(0o755)
    monkeypatch.setenv("SHANTY_SLURM", QUEUE)
    home = {"SHANTY_HOME": "/home/ann/.shanty"}
    return Container("apptainer", str(program), "/images/x", "n", "/runs/x", environment=home)


def plan_in(container: Container) -> Plan:
    """A plan of one host, with its ranks in the container."""
    plan = plan_of(2)
    node = plan.lead._replace(container=container._asdict())
    return plan._replace(attempt=plan.attempt._replace(nodes=(node,)))


def test_the_lead_hands_on_what_the_queue_told(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_lead, "_feed", lambda _: None)
    run = RunDir(tmp_path / "run")
    run.create()
    _, process = container_lead.start(run, plan_in(container))
    with process:
        assert process.wait(10) == 0
    found = (tmp_path / "environment").read_text().splitlines()
    assert {f"APPTAINERENV_SHANTY_SLURM={QUEUE}", "APPTAINERENV_SHANTY_HOME=/home/ann/.shanty"} <= {
        *found
    }


@pytest.mark.parametrize("hangs", [True, False])
def test_an_engine_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(container_lead, "_REMOVING", 0.1 if hangs else 30.0)
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    container = Container("docker", str(program), "sha256:1", "shanty-x", "/runs/x")
    plan = plan_in(container)
    with subprocess.Popen(["sleep", "600" if hangs else "0"]) as running:
        container_lead.leave(running.pid, plan)
        assert not Path(f"/proc/{running.pid}").exists()
    assert (tmp_path / "asked").exists() == hangs
    if hangs:
        assert (tmp_path / "asked").read_text() == "rm --force shanty-x\n"


@dataclass
class Started:
    """What a process became."""

    words: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


def test_a_worker_hands_it_on(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started()

    def execve(_path: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
        started.words, started.environ = words, environ

    monkeypatch.setattr(os, "execve", execve)
    container_entry.become(container, ["true"])
    assert started.environ["APPTAINERENV_SHANTY_SLURM"] == QUEUE
    assert started.environ["PATH"] == os.environ["PATH"]
    assert not [word for word in started.words if "SHANTY_SLURM" in word]
