"""The profile of a run over two hosts, brought here, on one clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from chrome_trace import read, rows, spans
from runs import LONG, WORKERS

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.skipif(not LONG, reason="takes PyTorch to hosts: SHANTY_TEST_LONG=1 runs it"),
]


def test_two_hosts(lab: LabHosts, tmp_path: Path) -> None:
    """Steps are in the same order on both; messages take far less than the tenth of a second."""
    site = Site(lab, tmp_path / "work")
    site.write("profile_steps.py", (WORKERS / "hvd_profile.py").read_text())
    words = ("--on", "lab1,lab2", "--mpi", "openmpi5", "-n", "2", "--ppn", "1", "--profile")
    done = site("run", "-q", *words, "profile_steps.py", timeout=170)
    assert done.returncode == 0, done.stderr
    found = rows(read(site.last.profile))
    assert list(found) == ["launch", "rank 0 on lab1", "rank 1 on lab2"]
    one, two = found["rank 0 on lab1"], found["rank 1 on lab2"]
    for number in range(30):
        ((since, until),) = spans(one[f"allreduce.step.{number}"], "ALLREDUCE")
        ((other_since, other_until),) = spans(two[f"allreduce.step.{number}"], "ALLREDUCE")
        assert max(since, other_since) <= min(until, other_until) + 1e5, number
    assert [path.name for path in site.last.artifacts.iterdir()] == ["profile.json"]
