"""Runs as their host knows them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from plans import plan_of
from shanty.runtime.rpc.runs import folder_of, follow_run, heartbeat_age
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import State, Status


def test_a_worker_that_is_done_is_told_from_one_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    ask = {"run": "20260101-000000-aaaa", "index": 1}
    assert heartbeat_age(ask, io.BytesIO(), print) == {"age": None, "left": True}
    (tmp_path / "work" / "20260101-000000-aaaa.1").mkdir(parents=True)
    assert heartbeat_age(ask, io.BytesIO(), print) == {"age": None, "left": False}


@pytest.mark.parametrize("name", ["plan.json", "job.json"])
def test_the_end_of_a_run_is_told_though_a_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    run = folder_of("20260101-000000-aaaa", 0)
    run.create()
    write_json(run.plan, plan_of(1).to_json())
    write_json(run.job, {})
    ended = Status(State.SUCCEEDED, created=1.0, ended=2.0, exit_code=0)
    write_json(run.status, ended.to_json())
    (run.path / name).unlink()
    ask = {"run": "20260101-000000-aaaa", "offsets": {}, "wait": 0.0, "first": True}
    changes = follow_run(ask, io.BytesIO(), print)["changes"]
    assert "status.json" in [path for path, _, _ in changes]
