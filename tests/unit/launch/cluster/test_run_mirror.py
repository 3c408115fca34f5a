"""The copy of a run that is on its lead host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shanty.launch.cluster.run_mirror import _GIVEN_UP, RunMirror, _over
from shanty.launch.host import Host
from shanty.runtime.agent import control
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import State, Status


def test_the_end_of_a_run_is_not_overwritten_by_what_came_before(tmp_path: Path) -> None:
    """Two commands that follow a run write the same files, and the slower one may be late."""
    run = RunDir(tmp_path)
    link = RunMirror(run, [Host("a")])
    for state in (State.RUNNING, State.STOPPED, State.RUNNING):
        link._store("status.json", None, json.dumps(Status(state).to_json()).encode(), "/there")
    assert control.read_status(run).state is State.STOPPED


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
