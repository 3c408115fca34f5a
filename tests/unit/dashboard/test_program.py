"""How the server runs `shanty`: no secret on a command line, and what came of it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from dashboards import Client, Served
from runs import wait_for
from shanty.dashboard import program
from shanty.dashboard.errors import Refused
from shanty.dashboard.program import Done, hidden, submitted
from shanty.runtime import platform
from shanty.runtime.errors import LaunchError


def test_secrets_go_by_the_environment() -> None:
    words = ["run", "-e", "A_TOKEN=s=1", "-e", "LR=1", "--", "x.py", "-e", "B_TOKEN=2"]
    found, environ = hidden(words, {"HOME": "/h"})
    assert found == ["run", "-e", "A_TOKEN", "-e", "LR=1", "--", "x.py", "-e", "B_TOKEN=2"]
    assert environ == {"HOME": "/h", "A_TOKEN": "s=1"}


@pytest.mark.parametrize(
    ("done", "status", "what"),
    [
        (Done([], 2, '{"event": "error", "what": "no", "why": "", "fix": "f"}\n', ""), 422, "no"),
        (Done([], 71, '{"event": "error", "what": "no"}\n', ""), 424, "no"),
        (Done([], -9, "x\n[1]\n", "killed"), 424, "the run was not started: exit code -9"),
    ],
    ids=range(3),
)
def test_what_shanty_says_is_passed_on(done: Done, status: int, what: str) -> None:
    with pytest.raises(Refused) as error:
        submitted(done)
    assert (error.value.status, error.value.what) == (status, what)


def test_the_id_of_the_run() -> None:
    line = json.dumps({"event": "submitted", "run": "20240101-000001-bcdf"})
    assert submitted(Done([], 0, f"note\n{line}\n", "")) == "20240101-000001-bcdf"


def test_what_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    script = tmp_path / "fake"
    script.write_text(f"#!/bin/sh\nsleep 100 &\necho $! > {pid}.new; mv {pid}.new {pid}\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(program.sys, "executable", str(script))

    async def run() -> None:
        work = asyncio.ensure_future(program.shanty(["run"], tmp_path, dict(os.environ), 3.0))
        await asyncio.to_thread(wait_for, pid.exists)
        await work

    with pytest.raises(LaunchError, match="took more than 3 s"):
        asyncio.run(run())
    wait_for(lambda: platform.process(int(pid.read_text())) is None)


def test_a_form_with_a_mistake_starts_nothing(server: Served, admin: Client) -> None:
    for form, said in (
        ({"command": ""}, "command: the command is empty"),
        (
            {"command": "x", "source": {"kind": "folder", "path": "/no/such"}},
            "source: folder not found",
        ),
        ({"command": "x", "machine_type": "p9"}, "machine_type: machine type 'p9' not found"),
    ):
        answer = admin.send("POST", "/runs", form)
        assert answer.status_code == 422
        assert answer.json()["error"]["what"].startswith(said)
    assert server.here.runs.ids() == []
