"""What Python says of a run, as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shanty
from shanty.client.jobs import job_of
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import Module

COMMAND = Module("m")
GIVEN = (
    ("time_limit", "2h", 7200.0),
    ("time_limit", 90, 90),
    ("memory_per_rank", "4G", 4 << 30),
    ("tags", ("a", "b"), ("a", "b")),
    ("env", {"A": 1}, {"A": "1"}),
    ("hostfile", Path("/h"), "/h"),
    ("mpi", None, None),
)


@pytest.mark.parametrize(("name", "value", "wanted"), GIVEN)
def test_values(tmp_path: Path, name: str, value: Any, wanted: Any) -> None:
    assert getattr(job_of(COMMAND, tmp_path, {name: value}), name) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": "2"}, "ranks must be a whole number, not '2'"),
        ({"oversubscribe": 1}, "oversubscribe must be true or false, not 1"),
        ({"tags": "night"}, "tags must be a list, not 'night'"),
        ({"rank": 2}, "unknown option 'rank'"),
        ({"time_limit": "soon"}, "time_limit='soon'"),
        ({"ranks": 0}, "ranks"),
        ({"start_timeout": -3}, "start_timeout=-3: invalid time '-3'"),
        ({"stall_after": float("nan")}, "invalid time"),
        ({"env": {"A=B": "x"}}, "env={'A=B': 'x'} is not a variable"),
        ({"env": {"A": None}}, "env={'A': None} is not a variable"),
        ({"env": {"": "x"}}, "not a variable"),
        ({"env": {"A": "x\0y"}}, "not a variable"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        job_of(COMMAND, tmp_path, given)


def test_options_have_names() -> None:
    with pytest.raises(TypeError, match="ranks=2"):
        shanty.task(2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="before it is called"):
        shanty.each(3)  # type: ignore[arg-type]


def test_wrong_arguments_start_no_run() -> None:
    def train(rate: float) -> float:
        return rate

    with pytest.raises(TypeError, match="positional argument"):
        shanty.task(train)(0.1, 2)  # type: ignore[call-arg]


def test_a_script_and_its_arguments_in_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="without quotes"):
        shanty.submit("train.py --epochs 3")


def test_names_are_completed() -> None:
    assert {"task", "submit", "each", "Folder"} <= {*dir(shanty)}
