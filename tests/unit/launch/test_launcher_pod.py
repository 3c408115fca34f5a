"""Inside the launcher's pod of an operator, as far as its files and variables tell."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shanty.launch.targets import launcher_pod
from shanty.runtime.spec import JobSpec, Script

INSIDE = {"K_MPI_JOB_ROLE": "launcher"}


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hostfile"
    monkeypatch.setattr(launcher_pod, "HOSTFILE", path)
    return path


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine at which somebody listens, as an sshd would."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield server.getsockname()[1]


def test_who_is_inside(hostfile: Path) -> None:
    assert not launcher_pod.is_inside(INSIDE)  # an operator would have mounted it
    hostfile.write_text("w0 slots=2\n")
    assert launcher_pod.is_inside(INSIDE)
    assert not launcher_pod.is_inside({"K_MPI_JOB_ROLE": "worker"})
    assert not launcher_pod.is_inside({**INSIDE, "SHANTY_RUN_DIR": "/run"})  # a rank, or its line


@pytest.mark.parametrize("form", ["{} slots={}\n", "{}:{}\n"])
def test_the_workers_are_the_hosts(
    hostfile: Path, listening: int, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Open MPI's form and Hydra's; the launcher's own pod may be among them."""
    own = os.uname().nodename
    names = [f"{own}.job.team.svc", "job-worker-0.job.team.svc"]
    hostfile.write_text("".join(form.format(name, 2) for name in names))
    place = {"hostname": "127.0.0.1", "port": str(listening)}
    monkeypatch.setattr(launcher_pod, "resolved", lambda _: place)
    said: list[str] = []
    job = launcher_pod.on_workers(JobSpec(Script("train.py")), said.append)
    assert job.on == f"{own}:2,job-worker-0.job.team.svc:2"
    assert said == []


def test_workers_that_do_not_listen_yet_are_waited_for(
    hostfile: Path, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostfile.write_text("w0 slots=1\n")
    place = {"hostname": "127.0.0.1", "port": "1"}
    monkeypatch.setattr(launcher_pod, "resolved", lambda _: place)
    monkeypatch.setattr(launcher_pod, "_LOOK", 0.01)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        place["port"] = str(listening)

    launcher_pod.on_workers(JobSpec(Script("train.py")), say)
    assert said[0] == "waits for 1 of 1 workers: w0"
