"""Listing, finding, showing and deleting runs, also in damaged folders."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path

import pytest

from command_line import LONG_AGO, Cli, Done, listed, make_run
from plans import node, plan_of
from shanty.client.terminal.session import summarise
from shanty.runtime import platform, run_agents
from shanty.runtime.run_agents import lost_cause
from shanty.runtime.rundir import RunDir, append_line, write_json
from shanty.runtime.spec import Failure, JobSpec, Script, State, Status


def test_the_first_rank_that_writes_has_its_label(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)  # of two ranks
    run.rank_log(0).write_text("1700000000.0 1 ready\n")
    assert cli("logs", "last") == Done(0, "[0] ready\n", "")
    assert cli("logs", "--rank", "0", "last") == Done(0, "ready\n", "")


def test_the_ranks_of_a_later_attempt_have_output(cli: Cli, home: Path) -> None:
    run = RunDir(make_run(home, 1).path, 2)
    run.create_attempt()
    run.rank_log(1).write_text("1700000000.0 1 again\n")
    assert cli("logs", "--rank", "1", "last") == Done(0, "again\n", "")
    done = cli("logs", "--rank", "5", "last")
    assert (done.code, "it has that of 1" in done.err) == (2, True)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"state": "none"}',
        b'{"state": 3}',
        b'{"state": "failed", "failure": 3}',
        b'{"state": "failed", "failure": {"lines": 1}}',
    ],
)
def test_a_damaged_status_is_made_up_for_from_the_events(
    cli: Cli, home: Path, damage: bytes
) -> None:
    run = make_run(home, 1)
    status = Status(State.FAILED, 2, exit_code=3, failure=Failure("rank 1 fell"))
    append_line(run.events, {"event": "state", "status": status.to_json()})
    with run.events.open("ab") as events:
        events.write(b'\xff{"event": "state"\n{"event": "sta')
    run.status.write_bytes(damage)
    done = cli("show", "last", "--json")
    shown = json.loads(done.out)
    assert (shown["state"], shown["exit_code"]) == ("failed", 3)
    assert shown["failure"]["what"] == "rank 1 fell"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff",
        b"[1]",
        b'{"event": "state"}\n',
        b'{"state": "lost"}\n' * 3,
        b'{"state": "failed", "created": "x"}',
        b'{"created": 1e308}',
        b"null",
        b"[" * 100_000,
    ],
)
def test_no_damage_loses_a_run(
    cli: Cli, home: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_agents, "_ASK_PATIENCE", 0.2)  # no controller could answer
    good, bad = make_run(home, 1), make_run(home, 2)
    for file in (bad.status, bad.events, bad.job, bad.plan, bad.agents, bad.progress):
        file.write_bytes(damage)
    make_run(home, 3)
    assert set(listed(cli("ps", "--json"))) == {"000001", "000002", "000003"}
    for words in (["ps"], ["show", bad.id], ["logs", bad.id], ["show", good.id]):
        assert cli(*words).code == 0, words
    assert "damaged" in cli("rerun", bad.id).err
    assert cli("rm", "--force", bad.id).code == 0
    for number, name in enumerate(("status", "events", "job", "plan"), 4):
        run = make_run(home, number)
        getattr(run, name).write_bytes(damage)
        assert cli("show", run.id).code == 0, name


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (b"", "site.json is damaged"),
        (b"{", "site.json is damaged"),
        (b"[]", "site.json is damaged"),
        (b"{}", "site.json is damaged"),
        (b'{"hosts": [{"place": 3}]}', "site.json is damaged"),
        (b'{"hosts": []}', "site.json is damaged"),
        (b'{"target": "nowhere"}', "target nowhere not found"),
    ],
)
def test_a_run_whose_hosts_are_not_known_is_listed_with_the_cause(
    cli: Cli, home: Path, site: bytes, said: str
) -> None:
    on, ended = make_run(home, 1, State.RUNNING), make_run(home, 2)
    for run in (on, ended):
        run.site.write_bytes(site)
    for _ in range(2):  # without an index, and with one
        done = cli("ps")
        assert (done.code, done.err) == (0, "")
        states = [line.split()[1] for line in done.out.splitlines()[1:]]
        assert states == ["lost", "succeeded"], done.out
    assert said in cli("show", on.id).out
    assert said in cli("stop", on.id).err
    assert cli("prune", "--keep", "0").code == 0
    assert on.path.exists()  # it may be found again
    on.site.unlink()
    assert listed(cli("ps", "--json"))["000001"] == "running"


@pytest.mark.parametrize(
    "statement",
    [
        None,
        "DROP TABLE runs",
        "UPDATE runs SET status = '{'",
        "UPDATE runs SET status = '{}'",
        "ALTER TABLE runs RENAME COLUMN tags TO labels",
        """DROP TABLE runs; CREATE TABLE runs (
            id TEXT PRIMARY KEY, name TEXT, tags TEXT NOT NULL, command TEXT NOT NULL,
            workspace TEXT NOT NULL, status TEXT NOT NULL
        ) STRICT""",  # as it once was
    ],
    ids=range(6),
)
def test_a_damaged_index_loses_no_run(cli: Cli, home: Path, statement: str | None) -> None:
    make_run(home, 1)
    make_run(home, 2, State.FAILED)
    wanted = {"000001": "succeeded", "000002": "failed"}
    assert listed(cli("ps", "--json")) == wanted
    if statement is None:
        (home / "index.sqlite").write_bytes(b"no database at all" * 100)
    else:
        with sqlite3.connect(home / "index.sqlite") as index:
            index.executescript(statement)
        index.close()
    assert listed(cli("ps", "--json")) == wanted
    (home / "index.sqlite").unlink()
    assert listed(cli("ps", "--json")) == wanted


def test_a_run_is_found_by(cli: Cli, home: Path) -> None:
    first = make_run(home, 1, name="small", suffix="bbbb")
    second = make_run(home, 2, name="big", suffix="cccc")
    third = make_run(home, 3, name="small", suffix="dddd")
    for reference, run in {
        first.id: first,
        first.id[:15]: first,
        second.id[:-1]: second,
        "big": second,
        "small": third,
        "last": third,
    }.items():
        assert json.loads(cli("show", reference, "--json").out)["id"] == run.id, reference
    assert json.loads(cli("show", "--json").out)["id"] == third.id
    done = cli("show", "20240101")
    assert done.code == 2
    assert "'20240101' matches 3 runs" in done.err
    assert second.id in done.err


def test_what_is_no_run_is_passed_over(cli: Cli, home: Path) -> None:
    make_run(home, 1)
    (home / "runs" / "notes").mkdir()
    (home / "runs" / "a.txt").write_text("")
    assert set(listed(cli("ps", "--json"))) == {"000001"}


def test_ps_filters(cli: Cli, home: Path) -> None:
    make_run(home, 1, name="a", tags=["x", "y"])
    make_run(home, 2, State.FAILED, name="a", tags=["x"], exit_code=3)
    make_run(home, 3, State.RUNNING, name="b")
    for words, wanted in {
        (): "1 2 3",
        ("--active",): "3",
        ("--state", "failed"): "2",
        ("--name", "a"): "1 2",
        ("--state", "failed", "--state", "running"): "2 3",
        ("--tag", "x"): "1 2",
        ("--tag", "x", "--tag", "y"): "1",
        ("--name", "a", "--active"): "",
    }.items():
        found = [run[-1] for run in listed(cli("ps", "--json", *words))]
        assert found == wanted.split(), words
    assert cli("ps", "-q", "--active").out == "20240101-000003-bcdf\n"
    assert "failed (3)" in cli("ps").out
    assert cli("ps", "--active", "--name", "a").out == "no active runs\n"


def test_ps_shows_the_newest_and_all_on_request(cli: Cli, home: Path) -> None:
    for number in range(23):
        make_run(home, number)
    assert cli("ps", "-q").out.split()[0] == "20240101-000003-bcdf"
    assert len(cli("ps", "-q").out.split()) == 20
    assert len(cli("ps", "-q", "-a").out.split()) == 23


def test_rm_and_prune_spare_what_is_on(cli: Cli, home: Path) -> None:
    make_run(home, 1)
    active = make_run(home, 2, State.RUNNING)
    make_run(home, 3, State.FAILED)
    make_run(home, 4, State.STOPPED)
    refused = cli("rm", active.id)
    assert refused.code == 2
    assert f"shanty stop {active.id}" in refused.err
    assert "2 runs deleted" in cli("prune", "--keep", "1").err
    assert listed(cli("ps", "--json")) == {"000002": "running", "000004": "stopped"}
    assert cli("rm", "last").code == 0
    assert set(listed(cli("ps", "--json"))) == {"000002"}


def test_rm_deletes_nothing_when_one_of_several_is_unknown(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)
    assert cli("rm", run.id, "nothing").code == 66
    assert run.path.exists()


def test_a_name_with_a_slip(cli: Cli, home: Path) -> None:
    make_run(home, 1, name="night")
    assert "did you mean night?" in cli("logs", "nihgt").err


def test_what_an_ended_run_is_asked(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)
    assert "has ended already" in cli("stop", run.id).err
    done = cli("stacks", run.id)
    assert done.code == 2
    assert "the run has ended" in done.err


def test_a_run_whose_agents_are_gone_is_lost(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, State.RUNNING)
    agent = {"pid": 2**22 + 1, "born": "1"}
    write_json(run.agents, {"controller": agent, "node_agent": agent, "boot": platform.boot_id()})
    assert listed(cli("ps", "--json")) == {"000001": "lost"}
    written = json.loads(run.status.read_text())
    assert (written["state"], written["exit_code"]) == ("lost", 75)
    assert "the run's agents were killed" in cli("show", run.id).out


def test_a_new_run_is_given_time_for_its_agent(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, State.PENDING, created=time.time())
    run.agents.unlink()
    assert listed(cli("ps", "--json")) == {"000001": "pending"}
    write_json(run.status, Status(created=LONG_AGO).to_json())
    assert listed(cli("ps", "--json")) == {"000001": "lost"}
    assert "never came up" in cli("show", run.id).out


def test_causes_of_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "never came up" in lost_cause(None, "b").what
    assert "restarted" in lost_cause({"boot": "a"}, "b").what
    assert "killed" in lost_cause({"boot": "b"}, "b").what
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "no longer be written" in lost_cause({"boot": "b"}, "b", "/tmp").what


def test_a_run_that_is_lost_without_an_end(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(home, 1, State.RUNNING)
    summarise(run, Status(State.LOST, created=time.time() - 60))
    seconds = capsys.readouterr().err.partition("lost after ")[2].partition(" s")[0]
    assert 60 <= float(seconds) < 100


def test_show_has_options_hosts_attempts_and_files(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, attempt=2)
    job = JobSpec(
        Script("train.py"), workdir="/home/ann/digits", ranks=2, env={"KEY": "secret"}, mpi="mpich",
        oversubscribe=True, time_limit=90.0,
    )  # fmt: skip
    write_json(run.job, job.to_json())
    plan = plan_of(4, lab0=1, lab1=3)
    plan = plan._replace(attempt=plan.attempt._replace(nodes=(node(), node(1))))
    write_json(run.plan, plan.to_json())
    failure = Failure("host lab3 has not been heard for 10 s").__dict__
    event = {"event": "attempt", "number": 2, "hosts": ["lab0", "lab1"], "failure": failure}
    append_line(run.events, event)
    RunDir(run.path, 2).create_attempt()
    RunDir(run.path, 2).rank_log(0).write_text("1700000000.0 1 ready\n")
    run.metrics.write_text("{}\n")
    (run.artifacts / "model").mkdir()
    (run.artifacts / "model" / "a.pt").touch()
    shown = cli("show").out
    for line in (
        "options    -n 2 --oversubscribe -e KEY --mpi mpich -t 90",
        "hosts      lab0 (1 rank), lab1 (3 ranks)",
        "attempt    2 on lab0, lab1, since host lab3 has not been heard for 10 s",
        f"folder     {run.path}",
        f"logs       {run.path}/attempts/2/logs (1 rank)",
        f"metrics    {run.metrics}",
        f"artifacts  {run.artifacts} (model/a.pt)",
    ):
        assert line in shown.splitlines()
    assert "secret" not in shown
    told = json.loads(cli("show", "--json").out)
    assert told["options"] == {
        "ranks": 2,
        "oversubscribe": True,
        "env": {"KEY": "secret"},
        "mpi": "mpich",
        "time_limit": 90.0,
    }
    assert [(host["name"], host["ranks"]) for host in told["hosts"]] == [("lab0", 1), ("lab1", 3)]
    assert [each["number"] for each in told["attempts"]] == [2]
    assert told["files"]["saved"] == ["model/a.pt"]
    assert told["files"]["rank_logs"] == {"0": f"{run.path}/attempts/2/logs/rank-0.log"}
