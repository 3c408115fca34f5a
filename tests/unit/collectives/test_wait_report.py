"""What a rank's requests wait for, as the run's watch reads it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runs import wait_for
from shanty.collectives import wait_report
from shanty.runtime.rundir import RUN_DIR, RunDir


class Requests:
    """Those of a process set: what the first is called, and since when it waits; none if empty."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.since = name, time.monotonic() - seconds

    def oldest(self) -> float:
        return time.monotonic() - self.since if self.name else 0.0

    def first(self) -> str:
        return self.name


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of rank 3."""
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    path = RunDir(tmp_path).rank_wait(3)
    path.parent.mkdir()
    return path


def test_the_longest_wait_of_all_process_sets(report: Path) -> None:
    first, second = Requests("allreduce.a", 0.0), Requests("allgather.b", 3.0)
    wait_report.watch(10, first)
    wait_report._look(10)
    assert not report.exists()
    first.since -= 5.0
    wait_report.watch(11, second)
    for each in (10, 11):
        wait_report._look(each)
    pid, since, what = report.read_text().split()
    assert (int(pid), what) == (os.getpid(), "allreduce.a")
    assert 4.9 < time.monotonic() - float(since) < 60
    first.name = ""
    wait_report._look(10)
    assert report.read_text().split()[2] == "allgather.b"
    for number, each in ((10, first), (11, second)):
        wait_report.end(number, each)
    assert report.read_text() == ""


def test_a_wait_is_reported_while_the_requests_own_thread_waits_within_mpi(report: Path) -> None:
    requests = Requests("allreduce.a", 0.6)
    wait_report.watch(12, requests)
    wait_for(lambda: report.exists() and "allreduce.a" in report.read_text())
    wait_report.end(12, requests)
    assert report.read_text() == ""


def test_later_requests_of_the_same_process_set_stay_watched(report: Path) -> None:
    before, later = Requests("allreduce.a", 2.0), Requests("allreduce.b", 2.0)
    wait_report.watch(13, before)
    wait_report.watch(13, later)
    wait_report.end(13, before)
    wait_report._look(13)
    assert report.read_text().split()[2] == "allreduce.b"
    wait_report.end(13, later)
