"""Where a run stands: what took how long."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from shanty.runtime import platform
from shanty.runtime.spec import JobSpec, Script, State, Status


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clock that tells the date jump."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_a_run_that_is_on_counts_by_a_clock_that_does_not_jump(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    status = Status.new(2)
    jump(monkeypatch, seconds)
    assert 0 <= status.took() < 60
    assert Status.from_json(status.to_json()) == status


def test_the_end_says_how_long_it_lasted() -> None:
    ended = Status(State.SUCCEEDED, created=50.0, started=100.0, ended=90.0, lasted=7.0)
    assert ended.took() == 7.0


def test_without_that_no_time_is_negative() -> None:
    assert Status(State.LOST, created=50.0, started=100.0, ended=90.0).took() == 0.0
    assert Status(State.LOST, created=50.0, started=100.0, ended=130.0).took() == 30.0
    elsewhere = replace(Status.new(1), boot="another", created=time.time() + 60)
    assert elsewhere.took() == 0.0
    assert platform.boot_id() != "another"


def test_options_of_a_target_as_older_versions_wrote_them() -> None:
    """They were fields of all jobs, with their defaults where nothing was asked for."""
    new = JobSpec(Script("train.py"), on="k8s").to_json()
    del new["options"]
    usual = {"partition": None, "exclusive": False, "labels": [], "schedule_timeout": 300.0}
    assert JobSpec.from_json({**new, **usual}).options == {}
    old = {**usual, "uid": 0, "labels": ["a=b"], "keep": True, "schedule_timeout": 90.0}
    wanted = {"uid": 0, "labels": ("a=b",), "keep": True, "schedule_timeout": 90.0}
    assert JobSpec.from_json({**new, **old}).options == wanted
    again = JobSpec.from_json({**new, "options": {"names": ["a"]}})
    assert again.options == {"names": ("a",)}


def test_what_was_asked_for() -> None:
    job = JobSpec(Script("train.py"), ranks=2, options={"queue": "a"})
    assert job.given() == {"ranks": 2, "queue": "a"}
    changed = job.with_values({"ranks": 3, "keep": True})
    assert (changed.ranks, changed.options) == (3, {"queue": "a", "keep": True})
    usual = job.defaulting({"ranks": 5, "queue": "b", "nodes": 2, "uid": 0})
    assert usual.given() == {"ranks": 2, "nodes": 2, "queue": "a", "uid": 0}
