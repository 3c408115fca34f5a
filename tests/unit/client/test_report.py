"""What is known of a run, by its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import shanty
from command_line import make_run
from plans import node, plan_of
from shanty.client.report import HostReport, RankState, RunReport
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import RunDir, append_line, write_json
from shanty.runtime.spec import Failure, JobSpec, Script, State


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    return tmp_path


def report_of(run: RunDir) -> RunReport:
    return shanty.find(run.id).report()


def test_hosts_ranks_attempts_and_options(home: Path) -> None:
    failure = Failure("rank 1 fell", rank=1, host="lab1")
    run = make_run(home, 1, State.FAILED, failure=failure)
    write_json(run.job, JobSpec(Script("a.py"), ranks=2, name="n", workdir="/w").to_json())
    plan = plan_of(2, lab0=1, lab1=1)
    plan = plan._replace(attempt=plan.attempt._replace(nodes=(node(), node(1))))
    write_json(run.plan, plan.to_json())
    append_line(run.events, {"event": "attempt", "number": 2, "time": 5.0, "hosts": ["lab0"]})
    for kind, rank, host in (("joined", 0, "lab0"), ("failed", 1, "lab9")):
        report = {"rank": rank, "host": host, "code": rank}
        append_line(run.events, {"event": f"rank-{kind}", "report": report})
    found = report_of(run)
    assert found.options == {"ranks": 2}
    assert found.command_line == "shanty run -C /w -n 2 --name n a.py"
    assert found.rank_states == [
        RankState(0, "lab0", "ended", None, False, 0),
        RankState(1, "lab9", "failed", 1, True, 0),
    ]
    names = [(each.name, each.meant, each.ranks, each.planned) for each in found.hosts]
    assert names == [("lab0", 1, (0,), True), ("lab1", 1, (), True), ("lab9", None, (1,), False)]
    (attempt,) = found.attempts
    assert (attempt.number, attempt.time, attempt.hosts, attempt.failure) == (
        2,
        5.0,
        ["lab0"],
        None,
    )
    assert isinstance(found.hosts[0], HostReport)


@pytest.mark.parametrize("event", [{}, {"number": "x", "hosts": 3, "failure": []}, {"hosts": [5]}])
def test_odd_attempts_are_read(home: Path, event: dict[str, object]) -> None:
    run = make_run(home, 1)
    append_line(run.events, {"event": "attempt", **event})
    (attempt,) = report_of(run).attempts
    assert attempt.failure is None


def test_a_deleted_run_has_none(home: Path) -> None:
    run = make_run(home, 1)
    known = shanty.find(run.id)
    shanty.runs()
    for path in sorted(run.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.path.rmdir()
    with pytest.raises(NotFoundError, match="has been deleted"):
        known.report()
