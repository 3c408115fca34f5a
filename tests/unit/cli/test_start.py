"""Both front ends start a run by `start_run`: a plan that cannot be started is dropped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

import shanty
from command_line import Cli
from shanty.launch.doctor import this_machine
from shanty.launch.targets.base import Planned
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import LaunchError, ShantyError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec

Start = Callable[[], object]


class Plan(Planned):
    """A plan that is submitted without anything being started; it counts how often it goes."""

    dropped: ClassVar[list[RunDir]] = []
    fails = False

    def render(self) -> str:
        return "a plan"

    def _submit(self, stdin: int) -> None:
        os.fstat(stdin)
        if self.fails:
            raise LaunchError("the launcher is gone")
        self.run.create()

    def drop(self) -> None:
        self.dropped.append(self.run)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> type[Plan]:
    def make(_targets: Targets, job: JobSpec, run: RunDir) -> Plan:
        return Plan(job, run)

    monkeypatch.setattr(Plan, "dropped", [])
    monkeypatch.setattr(Targets, "plan", make)
    return Plan


@pytest.fixture(params=["command line", "SDK"])
def start(request: pytest.FixtureRequest, cli: Cli) -> Start:
    def by_command_line() -> object:
        done = cli("run", "-d", "train.py")
        if done.code:
            raise LaunchError(done.err)
        return done

    return by_command_line if request.param == "command line" else lambda: shanty.submit("train.py")


def test_a_plan_is_kept_once_it_is_submitted(start: Start, home: Path, plan: type[Plan]) -> None:
    start()
    assert plan.dropped == []
    assert len([*(home / "runs").iterdir()]) == 1


def test_a_plan_that_cannot_be_submitted_is_dropped(
    start: Start, plan: type[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "fails", True)
    with pytest.raises(ShantyError, match="the launcher is gone"):
        start()
    assert len(set(plan.dropped)) == 1


def test_a_plan_for_which_this_machine_has_no_room_is_dropped(
    start: Start, plan: type[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise LaunchError("the disk is full")

    monkeypatch.setattr(this_machine, "check_before_run", refuse)
    with pytest.raises(ShantyError, match="the disk is full"):
        start()
    assert len(plan.dropped) == 1
