"""The engine's commands in which node agents are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plans import plan_of
from shanty.runtime.agent import container_entry, container_lead
from shanty.runtime.containers.container import Container
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


def test_the_lead_hands_on_what_the_queue_told(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_lead, "_feed", lambda _: None)
    run = RunDir(tmp_path / "run")
    run.create()
    plan = plan_of(2)
    node = plan.lead._replace(container=container._asdict())
    _, process = container_lead.start(
        run, plan._replace(attempt=plan.attempt._replace(nodes=(node,)))
    )
    with process:
        assert process.wait(10) == 0
    found = (tmp_path / "environment").read_text().splitlines()
    assert {f"APPTAINERENV_SHANTY_SLURM={QUEUE}", "APPTAINERENV_SHANTY_HOME=/home/ann/.shanty"} <= {
        *found
    }


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
