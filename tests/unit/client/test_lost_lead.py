"""The job of the attempt that follows the loss of a lead host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shanty.client.terminal.display import Show
from shanty.client.terminal.lost_lead import next_job
from shanty.launch.targets.base import Planned
from shanty.runtime.rundir import CONTINUES, RunDir, write_json
from shanty.runtime.site import Host
from shanty.runtime.spec import HOST, Failure, JobSpec, Program, State, Status

LOST = Failure("the lead host a cannot be reached", host="a", cause=HOST)


class Plan(Planned):
    """One whose run has ended; `b` and `c` are left."""

    def hosts_left(self, status: Status) -> tuple[Host, ...]:
        assert status.failure == LOST
        return Host("b", user="u", slots=2), Host("c", port=2222)


def ended(tmp_path: Path, job: dict[str, Any], **status: Any) -> Plan:
    run = RunDir(tmp_path / "20261128-174411-k3vd")
    run.path.mkdir()
    given = {"failure": LOST, "started": 100.0, "ended": 130.0, "lasted": 30.0, **status}
    write_json(run.status, Status(State.FAILED, 3, created=99.0, **given).to_json())
    usual = {"on": None, "hostfile": "hosts", "retries": 2, "env": {"A": "1"}}
    return Plan(JobSpec(Program(("x",)), **{**usual, **job}), run)


def test_the_job_on_the_hosts_that_are_left(tmp_path: Path, capsys: Any) -> None:
    job = next_job(ended(tmp_path, {"time_limit": 100.0}), Show())
    assert job is not None
    assert (job.on, job.hostfile, job.retries, job.time_limit) == (
        "u@b:2,ssh://c:2222",
        None,
        1,
        70,
    )
    assert job.env == {"A": "1", CONTINUES: "20261128-174411-k3vd"}
    said = "attempt 2 of 3 on b, c, as a new run: the lead host a cannot be reached"
    assert said in capsys.readouterr().err


def test_as_json(tmp_path: Path, capfdbinary: Any) -> None:
    assert next_job(ended(tmp_path, {}), Show(as_json=True)) is not None
    event = json.loads(capfdbinary.readouterr().out)
    assert (event["event"], event["number"]) == ("attempt", 2)


@pytest.mark.parametrize(
    ("job", "status"),
    [
        ({"retries": 0}, {}),
        ({"retries": 1}, {"attempt": 2}),
        ({"time_limit": 30.0}, {}),
        ({}, {"failure": None}),
    ],
)
def test_no_attempt_follows(tmp_path: Path, job: dict[str, Any], status: dict[str, Any]) -> None:
    assert next_job(ended(tmp_path, job, **status), Show()) is None
