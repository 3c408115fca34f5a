"""What a job asks for each rank, on this machine: it is there, or nothing is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shanty.launch.doctor import this_machine
from shanty.launch.doctor.this_machine import check_capacity
from shanty.runtime import platform
from shanty.runtime.errors import PrepareError
from shanty.runtime.spec import JobSpec, Program

MIB = 1 << 20
JOB = Program(("true",))


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "usable_memory", lambda: 1000 * MIB)
    monkeypatch.setattr(this_machine, "gpus", lambda: [{"name": "T4", "uuid": "1"}] * 2)
    check_capacity(JobSpec(JOB, memory_per_rank=500 * MIB), 2)
    check_capacity(JobSpec(JOB, gpus_per_rank=1), 2)
    with pytest.raises(PrepareError, match="memory-short"):
        check_capacity(JobSpec(JOB, memory_per_rank=501 * MIB), 2)
    with pytest.raises(PrepareError, match="gpus-short"):
        check_capacity(JobSpec(JOB, gpus_per_rank=1), 3)
    with pytest.raises(PrepareError, match="2 things") as caught:
        check_capacity(JobSpec(JOB, memory_per_rank=501 * MIB, gpus_per_rank=2), 2)
    assert "memory-short" in caught.value.why and "gpus-short" in caught.value.why


def test_more_ranks_than_cores_are_not_its_business() -> None:
    check_capacity(JobSpec(JOB, memory_per_rank=1), 10_000)


def test_nothing_is_started_that_does_not_fit(tmp_path: Path) -> None:
    """By option, or by the workspace's file."""
    environ = {**os.environ, "SHANTY_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "shanty", "run", "-n", "1"]
    typed = [*words, "--memory-per-rank", "900T", "true"]
    (tmp_path / "shanty.toml").write_text('[run]\nmemory_per_rank = "900T"\n')
    for command in (typed, [*words, "-C", str(tmp_path), "true"]):
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == PrepareError.exit_code, done.stderr
        assert "1 rank with 900 TiB each" in done.stderr
    assert not list((tmp_path / "home" / "runs").glob("*"))
