"""Runs as their host knows them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plans import plan_of
from runs import wait_for
from shanty.runtime import platform, run_agents
from shanty.runtime.rpc.runs import folder_of, follow_run, heartbeat_age, sweep_runs
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import State, Status


def test_a_worker_that_is_done_is_told_from_one_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    ask = {"run": "20260101-000000-aaaa", "index": 1}
    gone = {"age": None, "silent": None}
    assert heartbeat_age(ask, io.BytesIO(), print) == {**gone, "left": True}
    folder = tmp_path / "work" / "20260101-000000-aaaa.1"
    folder.mkdir(parents=True)
    assert heartbeat_age(ask, io.BytesIO(), print) == {**gone, "left": False}
    (folder / "heard").touch()
    os.utime(folder / "heard", (time.time() - 90,) * 2)
    answer = heartbeat_age(ask, io.BytesIO(), print)
    assert (answer["age"], round(answer["silent"], -1)) == (None, 90)  # it gave up long ago


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
    assert not run.standby.exists()
    follow_run({**ask, "standby": True}, io.BytesIO(), print)
    assert 0 <= time.monotonic() - run.standby.stat().st_mtime < 60


@pytest.mark.skipif(not platform.LINUX, reason="reads /proc")
def test_a_run_is_led_while_its_node_agent_is_in_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller was killed, and the engine's command has ended of it."""
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    run = folder_of("20260101-000000-aaaa", 0)
    run.create()
    write_json(run.status, Status(State.RUNNING, created=1.0).to_json())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gone:
        write_json(run.agents, run_agents.agents_record(controller=gone.pid, node_agent=gone.pid))
    words = [sys.executable, "-c", "input()", "agent.container_lead", str(run.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as agent:
        wait_for(lambda: run_agents.has_agents_here(run), 5, "the agent goes unseen")
        assert sweep_runs({}, io.BytesIO(), print) == {"swept": []}
        assert run_agents.status_of(run).state is State.RUNNING
        agent.kill()
    assert sweep_runs({}, io.BytesIO(), print) == {"swept": [run.path.name]}
    assert run_agents.status_of(run).state is State.LOST


def test_runs_that_have_ended_are_swept_without_a_look_at_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host has hundreds of both, and a run that starts waits for the sweep."""
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    monkeypatch.setattr(platform, "processes", lambda: pytest.fail("looked"))
    run = folder_of("20260101-000000-aaaa", 0)
    run.create()
    write_json(run.status, Status(State.SUCCEEDED, created=1.0, ended=2.0).to_json())
    with subprocess.Popen(["true"]) as gone:
        write_json(run.agents, run_agents.agents_record(controller=gone.pid, node_agent=gone.pid))
    assert sweep_runs({}, io.BytesIO(), print) == {"swept": []}
