"""Where else values go: what a call means there, and how little a run feels of what fails."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shanty
from shanty import _script, _sinks
from shanty._sinks import PACKAGES, Sinks
from shanty._sinks.record import Place, Record, record
from shanty.client.options import SINKS
from shanty.runtime.rundir import RUN_DIR, RunDir, read_lines

VALUES = st.dictionaries(
    st.sampled_from(["step", "epoch", "loss", "note", "ok"]),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
)


class Fake:
    """Stands for a place; what it is told, and when it fails."""

    places: ClassVar[list[Place]] = []
    records: ClassVar[list[Record]] = []
    ends: ClassVar[list[bool]] = []
    fails: ClassVar[str] = ""

    def __init__(self, place: Place) -> None:
        self.places.append(place)
        if self.fails == "open":
            raise OSError("no such server\nand more")

    def write(self, record: Record) -> None:
        self.records.append(record)
        if self.fails == "write":
            raise RuntimeError("away")

    def close(self, *, failed: bool) -> None:
        self.ends.append(failed)
        if self.fails == "close":
            raise RuntimeError("away")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Fake]]:
    """A place called `fake`, instead of all others."""
    for name in ("places", "records", "ends"):
        monkeypatch.setattr(Fake, name, [])
    monkeypatch.setattr(Fake, "fails", "")
    monkeypatch.setattr(_sinks, "sink_of", {"fake": Fake}.__getitem__)
    monkeypatch.setitem(PACKAGES, "fake", ("json",))
    monkeypatch.setattr(_script, "_places", [])
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(_sinks.atexit, "register", lambda _: None)
    yield Fake


def test_the_options_know_the_same_places() -> None:
    assert tuple(PACKAGES) == SINKS


@pytest.mark.parametrize(
    ("values", "step", "numbers"),
    [
        ({"step": 7, "loss": 0.5}, 7, {"loss": 0.5}),
        ({"epoch": 3, "loss": 0.5}, 3, {"loss": 0.5}),
        ({"epoch": 3, "step": 90, "loss": 1}, 90, {"epoch": 3.0, "loss": 1.0}),
        ({"step": 2.0}, 2, {}),
        ({"step": 2.5}, 11, {"step": 2.5}),
        ({"step": math.nan, "epoch": 4}, 4, {"step": math.nan}),
        ({"step": True, "ok": True}, 11, {"step": 1.0, "ok": 1.0}),
        ({"step": "first", "loss": 1.0}, 11, {"loss": 1.0}),
    ],
)
def test_steps(values: Mapping[str, Any], step: int, numbers: Mapping[str, float]) -> None:
    found = record(values, 11)
    assert found.step == step
    assert repr(dict(found.numbers)) == repr(numbers)


@given(VALUES)
def test_any_values(values: Mapping[str, Any]) -> None:
    """Every value is somewhere once, but for those that are no number and no text."""
    found = record(values, 5)
    assert isinstance(found.step, int)
    kept = {**found.numbers, **found.texts}
    assert all(isinstance(number, float) for number in found.numbers.values())
    lost = [name for name in values if name not in kept and values[name] is not None]
    assert lost in ([], ["step"], ["epoch"])
    if lost:
        assert found.step == values[lost[0]]


def test_a_log_call_reaches_the_place(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        RUN_DIR: str(tmp_path), "SHANTY_LOG_TO": "fake", "SHANTY_LOG_NAME": "night",
        "SHANTY_RUN_ID": "the-id", "RANK": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    for name in (*_script.RANK,):
        monkeypatch.delenv(name, raising=False)
    shanty.log(loss=math.nan, note="warm")
    shanty.log(loss=0.5, step=40)
    shanty.log(loss=0.25)
    (place,) = fake.places
    assert place == Place(tmp_path / "artifacts" / "fake", "the-id", "night", 2)
    assert place.title == "night rank 2"
    assert place.folder.is_dir()
    assert [each.step for each in fake.records] == [0, 40, 2]
    assert math.isnan(fake.records[0].numbers["loss"])
    assert fake.records[0].texts == {"note": "warm"}
    assert [line["loss"] for line in read_lines(RunDir(tmp_path).metrics)] == ["NaN", 0.5, 0.25]


def test_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named at once, and again at each call that would use it."""
    monkeypatch.setitem(PACKAGES, "mlflow", ("no_such_package",))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="--log-to mlflow needs no_such_package") as e:
            Sinks(["mlflow"], tmp_path, "", "", 0)
        assert e.value.name == "no_such_package"
    with pytest.raises(ValueError, match="none of tensorboard, mlflow, wandb"):
        Sinks(["elsewhere"], tmp_path, "", "", 0)


@pytest.mark.parametrize("when", ["open", "write", "close"])
def test_one_that_fails_says_one_line(
    fake: type[Fake], when: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.fails = when
    sinks = Sinks(["fake"], tmp_path, "", "", 0)
    for _ in range(3):
        sinks.write({"loss": 1.0})
    sinks.close()
    said = capsys.readouterr().err
    assert said.startswith("shanty: nothing more is logged to fake: ")
    assert len(said.splitlines()) == 1
    assert "and more" not in said
    assert len(fake.records) == {"open": 0, "write": 1, "close": 3}[when]


def test_a_script_that_fails_says_so(fake: type[Fake], tmp_path: Path) -> None:
    """Once, though Python's end comes after it."""
    sinks = Sinks(["fake"], tmp_path, "", "", 0)
    sys.excepthook(ValueError, ValueError("x"), None)
    sinks.close()
    assert fake.ends == [True]


def test_a_fork_writes_nothing(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = Sinks(["fake"], tmp_path, "", "", 0)
    monkeypatch.setattr(sinks, "_process", 0)
    sinks.write({"loss": 1.0})
    sinks.close()
    assert fake.records == fake.ends == []
