"""What a rank's requests wait for, as the run's watch reads it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shanty.collectives import wait_report
from shanty.runtime.rundir import RUN_DIR, RunDir


def test_the_longest_wait_of_all_process_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    path = RunDir(tmp_path).rank_wait(3)
    path.parent.mkdir()
    wait_report.note(0, 0.5, lambda: "allreduce.a")
    assert not path.exists()
    wait_report.note(0, 5.0, lambda: "allreduce.a")
    wait_report.note(1, 3.0, lambda: "allgather.b")
    pid, since, what = path.read_text().split()
    assert (int(pid), what) == (os.getpid(), "allreduce.a")
    assert 4.9 < time.monotonic() - float(since) < 60
    wait_report.note(0, 0.0, lambda: "")
    assert path.read_text().split()[2] == "allgather.b"
    wait_report.note(1, 0.0, lambda: "")
    assert path.read_text() == ""
