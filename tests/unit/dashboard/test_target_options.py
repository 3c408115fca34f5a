"""The options of targets in the form of a new run, another package's among them."""

from __future__ import annotations

from pathlib import Path

import pytest

import toy_target
from command_line import make_run
from dashboards import Client, Served
from shanty.dashboard import form, target_options
from shanty.dashboard.models import Form
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import JobSpec, Script, State

ASKED = {"command": "x", "source": {"kind": "folder", "path": "/tmp"}}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package with the toy target is installed."""
    for folder in toy_target.package(tmp_path / "package"):
        monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("toy")
def test_the_form_offers_them() -> None:
    found = {each.scheme: each for each in target_options.targets()}
    assert list(found) == ["slurm", "k8s", "toy"]
    kinds = {each.name: (each.flag, each.kind, each.words) for each in found["toy"].options}
    assert kinds == {
        "toy_colour": ("--toy-colour", "text", ["red", "blue"]),
        "toy_room": ("--toy-room", "number", []),
        "toy_names": ("--toy-name", "list", []),
        "toy_now": ("--toy-now", "switch", []),
    }
    names = {each.name for each in found["k8s"].options}
    assert "queue" in names
    assert not names & {"nodes", "k8s_patch"}  # it has a field for the one, and no files


@pytest.mark.usefixtures("toy")
def test_the_line_has_them(home: Path) -> None:
    options = {"toy_colour": "red", "toy_room": "2", "toy_names": ["a", "b"], "toy_now": True}
    given = Form.model_validate({**ASKED, "on": "toy", "options": {**options, "other": "x"}})
    text = form.line(given)
    assert "--toy-colour red --toy-room 2 --toy-name a --toy-name b --toy-now" in text
    assert [each.field for each in form.problems(given, home)] == ["options.other"]


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("on", "options", "says"),
    [
        ("toy", {"toy_colour": "green"}, "--toy-colour takes red or blue, not 'green'"),
        ("toy", {"toy_room": "0"}, "--toy-room takes a whole number from 1"),
        ("toy", {"toy_room": "x"}, "--toy-room takes a whole number from 1"),
        ("toy", {"partition": "p"}, "--partition is not for toy"),
        ("slurm:hpc", {"toy_now": True}, "--toy-now is not for slurm:hpc"),
        (None, {"toy_now": True}, "--toy-now is not for this machine"),
        ("k8s", {"k8s_patch": "{}"}, "the form has no option k8s_patch"),
        ("k8s", {"schedule_timeout": "soon"}, "invalid time 'soon'"),
    ],
)
def test_what_makes_no_sense(
    home: Path, on: str | None, options: dict[str, object], says: str
) -> None:
    given = Form.model_validate({**ASKED, "on": on, "options": options})
    (problem,) = form.problems(given, home)
    assert problem.field == f"options.{next(iter(options))}"
    assert says in problem.what


def test_a_change_keeps_what_the_form_does_not_have() -> None:
    options = {"queue": "a", "keep": True, "k8s_patch": "{}"}
    job = JobSpec(Script("x.py"), on="k8s", options=options)
    again = form.again(job, Form(ranks=2))
    assert again[: again.index("--")].count("--keep") == 1
    again = form.again(job, Form(options={"queue": "b"}))
    assert again[again.index("--queue") + 1] == "b"
    assert again[again.index("--k8s-patch") + 1] == "{}"
    assert again.count("--queue") == 1 and "--keep" not in again


def test_pages_get_them(home: Path, server: Served, admin: Client) -> None:
    run = make_run(home, 1, state=State.SUCCEEDED)
    job = JobSpec(Script("x.py"), on="slurm", options={"partition": "gpu"})
    write_json(run.job, job.to_json())
    server.knows(1)
    assert [each["title"] for each in admin.json("/suggest")["targets"]] == ["Slurm", "Kubernetes"]
    found = admin.json(f"/runs/{run.id}")
    assert admin.json(f"/runs/{run.id}/form")["options"] == {"partition": "gpu"}
    assert found["job"]["partition"] == "gpu"
    answer = admin.send("POST", "/preview", {**ASKED, "on": "slurm", "options": {"qos": "q"}})
    assert "--qos q" in answer.json()["command"]
    assert answer.json()["problems"] == []
