"""A home, a workspace and a machine for the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Cli, Done
from shanty import program
from shanty.launch import mpis
from shanty.launch.run_mirror import RunMirror
from shanty.runtime import platform
from shanty.runtime.mpi.installation import Installation

MPI = Installation("openmpi5", "5.0.11", "/mpi", "/mpi/bin/mpirun", "/mpi/lib/libmpi.so", "shanty")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a workspace of one's own, and a machine with two cores and one MPI."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("print('hi')\n")
    monkeypatch.chdir(tmp_path / "work")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "XDG_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(platform, "usable_cores", lambda: 2)
    monkeypatch.setattr(mpis, "select", lambda *_: MPI)
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`shanty WORDS…` in this process; an exception that gets out of it fails the test."""

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["shanty", *words])
        code = 0
        try:
            program.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        return Done(code, *capfd.readouterr())

    return call


@pytest.fixture(autouse=True)
def no_mirror_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the threads that follow runs: they end with the process of a command."""
    mirrors: list[RunMirror] = []
    start = RunMirror.start

    def started(mirror: RunMirror) -> RunMirror:
        mirrors.append(mirror)
        return start(mirror)

    monkeypatch.setattr(RunMirror, "start", started)
    yield
    for each in mirrors:
        each.close()
