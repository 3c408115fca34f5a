"""The options of another package's target: in the help, shanty.toml, Python, and nowhere else."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import toy_target
from command_line import Cli
from shanty.client import options
from shanty.client.command_line import line
from shanty.client.jobs import job_of, job_typed
from shanty.launch.options import known
from shanty.launch.options.declared import Declared
from shanty.launch.options.option import text
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.spec import JobSpec, Module

COMMAND = Module("m")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package with the target is installed."""
    for folder in toy_target.package(tmp_path / "package"):
        monkeypatch.syspath_prepend(folder)


def test_the_help_has_them_in_a_group_of_their_own(cli: Cli) -> None:
    text = cli("run", "--help").out
    own = text[text.index("\nToy:\n") :]
    for option in toy_target.TOY.options:
        assert f"  {option.flag} " in own
        assert option.help in " ".join(own.split())


def test_they_are_typed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--toy-name", "a", "--toy-name", "b", "--toy-now", "--toy-room", "2"]
    done = cli("run", "--dry-run", "--on", "toy", "--toy-colour=red", *words, "true")
    assert done.code == 0, done.err
    assert "as toy gives them" in done.out
    for given, says in (
        (["--on", "toy", "--toy-colour", "green"], "--toy-colour takes red or blue, not 'green'"),
        (["--on", "toy", "--toy-room", "0"], "toy room must be at least 1, not 0"),
        (["--on", "toy", "--partition", "x"], "--partition is for Slurm, and this run goes to toy"),
        (["--on", "toy", "--nodes", "2"], "--nodes is for Slurm, and this run goes to toy"),
        (["--toy-now"], "--toy-now is for Toy, and this run goes to this machine"),
        (["--on", "slurm", "--toy-now"], "--toy-now is for Toy, and this run goes to slurm"),
        (["--toy-color", "red"], "--toy-color"),
    ):
        done = cli("run", "--dry-run", *given, "true")
        assert done.code == 2
        assert says in done.err


@pytest.mark.parametrize(
    ("table", "on", "wanted"),
    [
        ('[toy]\ncolour = "red"\nnow = true\nname = ["a"]', "toy",
         {"toy_colour": "red", "toy_now": True, "toy_names": ("a",)}),
        ('[run]\non = "toy"\n[toy]\nroom = 2\nnow = false', None, {"toy_room": 2}),
        ("[toy]\nroom = 2", None, {}),
        ('[toy]\nroom = 2\n[slurm]\npartition = "a"', "slurm", {"partition": "a"}),
        ('[run]\npartition = "a"\nslurm = "--mem 1"\n[slurm]\npartition = "b"', "slurm:x",
         {"partition": "b", "slurm": "--mem 1"}),
        ('[k8s]\nqueue = "q"\nkeep = true', "k8s:c/n", {"queue": "q", "keep": True}),
    ],
)  # fmt: skip
def test_a_table_of_the_workspace(
    tmp_path: Path, table: str, on: str | None, wanted: dict[str, Any]
) -> None:
    (tmp_path / "shanty.toml").write_text(table)
    assert job_of(COMMAND, tmp_path, {"on": on}).options == wanted


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[toy]\ncolor = 'red'", "line 2: unknown key 'color' in [toy]"),
        ("[toy]\ncolour = 'green'", "takes red or blue, not 'green'"),
        ("[toy]\nroom = 'x'", "room in [toy]"),
        ("toy = 3", "toy in .* must be a table"),
        ("[run]\ntoy_room = 2", "unknown key 'toy_room' in [run]"),
        ("slurm = '--mem 4G'", "line 1: unknown 'slurm'"),
        ("[local]\nnow = true", "line 1: unknown 'local'"),
        ("[other]\nnow = true", "line 1: unknown 'other'"),
    ],
)
def test_a_table_that_makes_no_sense(tmp_path: Path, table: str, says: str) -> None:
    (tmp_path / "shanty.toml").write_text(table)
    with pytest.raises(UsageError, match=says.replace("[", r"\[")):
        options.defaults(tmp_path)


def test_python_has_them_by_their_names(tmp_path: Path) -> None:
    given = {"on": "toy", "toy_colour": "red", "toy_names": ("a", "b"), "toy_now": False}
    job = job_of(COMMAND, tmp_path, given)
    assert job.options == {"toy_colour": "red", "toy_names": ("a", "b")}
    with pytest.raises(UsageError, match="unknown option 'toy_color'") as caught:
        job_of(COMMAND, tmp_path, {"on": "toy", "toy_color": "red"})
    assert "toy_colour" in caught.value.fix
    with pytest.raises(UsageError, match="toy_room must be a whole number"):
        job_of(COMMAND, tmp_path, {"toy_room": "2"})


def test_the_line_of_a_run_has_them(tmp_path: Path) -> None:
    wanted = {"toy_colour": "red", "toy_room": 2, "toy_names": ("a", "b c"), "toy_now": True}
    job = job_of(COMMAND, tmp_path, {"on": "toy", **wanted})
    words = shlex.split(line(job))
    assert "--toy-colour red --toy-room 2 --toy-name a --toy-name" in " ".join(words)
    assert "b c" in words and "--toy-now" in words
    assert JobSpec.from_json(job.to_json()) == job


def test_of_a_package_that_is_gone_a_job_is_shown_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_typed(COMMAND, tmp_path, {"env": {}, "on": "toy", "toy_room": 2})
    monkeypatch.undo()
    assert "--toy-room 2" in line(job)
    with pytest.raises(UsageError, match="toy_room is an option of a target that is not installed"):
        known.refuse_foreign_options(job, "toy", Declared("toy", "toy"))


@pytest.mark.parametrize(
    "declared",
    [
        Declared("toy", "Toy", (text("toy_place", "--place", "", "P"),), make=toy_target.make),
        Declared("toy", "Toy", (text("place", "--toy-place", "", "P"),), make=toy_target.make),
        Declared("other", "Toy", make=toy_target.make),
        Declared("toy", "Toy"),
    ],
)
def test_a_declaration_that_could_clash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, declared: Declared
) -> None:
    monkeypatch.setattr(toy_target, "TOY", declared)
    monkeypatch.syspath_prepend(str(tmp_path))  # it is looked at again
    found = known.declared("toy")
    assert found is not None and found.options == () and found.make is not None
    with pytest.raises(NotFoundError, match="target toy of the package toy does not work here"):
        found.make(None)
