"""Machine types and the queue, as the pages have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import make_run
from dashboards import Client, Served
from shanty.dashboard import form
from shanty.dashboard.models import Form
from shanty.launch.machines import queue, types
from shanty.launch.machines.types import MachineType
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import JobSpec, Script, State


def words(**fields: object) -> list[str]:
    made = Form(**fields)  # type: ignore[arg-type]
    return form.words(made, ("machines", "machine_type", "master_type", "priority"), shown=False)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"machine_type": "big"}, ["--machines", "big:1"]),
        ({"machine_type": "big", "machines": 3}, ["--machines", "big:3"]),
        ({"machine_type": "a", "priority": 2}, ["--machines", "a:1", "--priority", "2"]),
        ({"machine_type": "big", "machines": 2, "master_type": "s"}, ["--machines", "s:1,big:2"]),
        ({"machines": 3}, ["--nodes", "3"]),
        ({}, []),
    ],
)
def test_words(fields: dict[str, object], wanted: list[str]) -> None:
    assert words(**fields) == wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"machines": 4}, "s:1,big:4"),
        ({"machine_type": "huge"}, "s:1,huge:2"),
        ({"master_type": None}, "big:2"),
        ({"ranks": 3}, "s:1,big:2"),
    ],
)
def test_a_change_keeps_the_rest(changes: dict[str, object], wanted: str) -> None:
    job = JobSpec(Script("x.py"), machines=(("s", 1), ("big", 2)))
    again = form.again(job, Form(**changes))  # type: ignore[arg-type]
    assert again[again.index("--machines") + 1] == wanted
    assert again.count("--machines") == 1


def test_types_and_who_waits(
    home: Path, server: Served, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "ensure_scheduler", lambda _home: None)  # it would start them
    types.save(MachineType("big", "a,b", slots=4, gpus=1), home)
    types.save(MachineType("queue", "slurm"), home)
    on = make_run(home, 1, state=State.RUNNING)
    write_json(on.site, {"hosts": [], "machines": ["a"]})
    for number, priority in ((2, 0), (3, 5)):
        run = make_run(home, number, state=State.PENDING)
        job = JobSpec(Script("x.py"), machines=(("big", 2),), priority=priority)
        write_json(run.job, job.to_json())
        write_json(run.site, {"target": "machines"})
    server.knows(3)
    found = admin.json("/machines")
    known = {each["name"]: each for each in found["types"]}
    assert (known["big"]["total"], known["big"]["free"], known["big"]["kind"]) == (2, 1, "hosts")
    assert (known["queue"]["total"], known["queue"]["kind"]) == (None, "slurm")
    assert [(each["place"], each["priority"], each["needs"]) for each in found["queue"]] == [
        (1, 5, "2 of big"),
        (2, 0, "2 of big"),
    ]
    assert admin.json("/runs")["facets"]["machine_types"] == {"big": 2}


def test_problems_of_a_form(home: Path, admin: Client) -> None:
    types.save(MachineType("big", "a,b"), home)
    asked = {"command": "x", "source": {"kind": "folder", "path": "/tmp"}}
    for more, field in (
        ({"machine_type": "bag"}, "machine_type"),
        ({"machine_type": "big", "on": "c"}, "on"),
        ({"master_type": "big"}, "machine_type"),
        ({"machines": 2}, "machines"),
        ({"priority": 2}, "priority"),
    ):
        answer = admin.send("POST", "/preview", {**asked, **more}).json()
        assert [each["field"] for each in answer["problems"]] == [field]
    answer = admin.send("POST", "/preview", {**asked, "machine_type": "big", "machines": 2}).json()
    assert answer["problems"] == []
    assert "--machines big:2" in answer["command"]
