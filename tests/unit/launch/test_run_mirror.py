"""The copy of a run that is on its lead host."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shanty.launch import run_mirror
from shanty.launch.run_mirror import _GIVEN_UP, RunMirror, _over
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import run_agents, run_status
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.site import Host
from shanty.runtime.spec import Failure, State, Status


def test_the_end_of_a_run_is_not_overwritten_by_what_came_before(tmp_path: Path) -> None:
    """Two commands that follow a run write the same files, and the slower one may be late."""
    run = RunDir(tmp_path)
    link = RunMirror(run, [Host("a")])
    for state in (State.RUNNING, State.STOPPED, State.RUNNING):
        link._store("status.json", None, json.dumps(Status(state).to_json()).encode(), "/there")
    assert run_status.read_status(run).state is State.STOPPED


def test_the_target_may_know_why_a_host_is_gone(tmp_path: Path) -> None:
    """The mirror only finds that nobody reaches it; a pod's status has its end."""
    run = RunDir(tmp_path)
    write_json(run.job, {})
    known = Failure("pod a has ended", "its first process ended with 137", host="a")
    link = RunMirror(run, [Host("a")], amend=lambda status: replace(status, failure=known))
    for failure in (Failure("the lead host a cannot be reached", host="a"), Failure("later")):
        link.conclude(failure, State.FAILED)
        assert run_status.read_status(run).failure == known


class Unknowing:
    """The client of a lead host that has no such run."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise NotFoundError("the lead host has no run r")

    def close(self, _patience: float) -> None: ...


@pytest.mark.parametrize("alive", [True, False])
def test_a_run_whose_hosts_are_being_prepared_is_not_lost(tmp_path: Path, alive: bool) -> None:
    """Its lead host hears of it when they all are ready; until then whoever submits it is there."""
    run = RunDir(tmp_path)
    write_json(run.status, Status(State.PENDING, 2, created=1.0).to_json())
    record = run_agents.agents_record(submitter=os.getpid())
    if not alive:
        record["submitter"]["born"] = "0"
    write_json(run.site, {"hosts": [{"name": "a"}], "submitter": record})
    client = Unknowing()
    link = RunMirror(run, [Host("a")], [client]).start()  # type: ignore[list-item]
    try:
        state = link.status(10).state
        assert client.asked == 1
    finally:
        link.close()
    assert state is (State.PENDING if alive else State.LOST)
    assert run_status.read_status(run).state is state


@pytest.mark.parametrize(
    ("ages", "over"),
    [
        ({"b": 1.0, "c": 1.5}, False),
        ({"b": 11.0, "c": 9.0}, False),  # they may have had no CPU to hear with
        ({"b": _GIVEN_UP, "c": 9.0}, True),
        ({"b": _GIVEN_UP}, True),  # its node agent has gone and left its folder behind
        ({"b": -1.0, "c": -1.0}, False),  # they are done: so the controller was there to say so
        ({"b": -1.0, "c": _GIVEN_UP}, False),
        ({"b": _GIVEN_UP, "c": 0.5}, False),  # b is not in the latest attempt
        ({}, False),
    ],
)
def test_when_a_lead_that_does_not_answer_is_given_up(ages: dict[str, float], over: bool) -> None:
    assert _over(ages) == over


class Deserted(RpcClient):
    """The client of a worker that gave its lead host up, which was silent for so many seconds."""

    def __init__(self, host: Host, silent: float) -> None:
        self.host, self._silent = host, silent

    def ask(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(values={"age": None, "silent": self._silent, "left": False})

    def close(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("seen", "silent", "state", "left"),
    [
        (12, (12, 13), State.FAILED, "bc"),
        (12, (12, None), State.FAILED, ""),  # which may still be in touch with the lead host
        (1, (600, None), State.RUNNING, ""),  # was lost long before: the run went on without it
        (1, (600, 600), State.RUNNING, ""),
        (3600, (3600, 3600), State.FAILED, ""),  # this machine has slept
        (None, (3600, 3600), State.FAILED, ""),  # another command looks, for the first time
    ],
)
def test_what_the_workers_of_a_lead_host_that_does_not_answer_prove(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen: int | None,
    silent: tuple[int | None, ...],
    state: State,
    left: str,
) -> None:
    run = RunDir(tmp_path)
    write_json(run.job, {})
    write_json(run.status, Status(State.RUNNING, 3, created=1.0).to_json())
    hosts = [Host(name) for name in "abc"]
    link = RunMirror(run, hosts)
    link._seen = time.time() - seen if seen is not None else 0.0
    outcomes = [
        None if age is None else Deserted(host, age)
        for host, age in zip(hosts[1:], silent, strict=True)
    ]
    others = run_mirror.connect.attempt  # for mirrors of other tests, which may still look

    def attempt(asked: Sequence[Host], **more: Any) -> Any:
        return outcomes if list(asked) == hosts[1:] else others(asked, **more)

    monkeypatch.setattr(run_mirror.connect, "attempt", attempt)
    link._ask_around()
    assert run_status.read_status(run).state is state
    assert "".join(host.name for host in link.hosts_left) == left
