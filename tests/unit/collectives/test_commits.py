"""The files of commits: which of them another attempt goes on from. Without ranks."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from shanty.collectives import commits
from shanty.collectives.commits import Copy, Format, Store
from shanty.runtime import cleanup
from shanty.runtime.rundir import ATTEMPT_DIR, CONTINUES, RUN_ID


def load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


FORMAT = Format(load, pickle.dump)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file on disk of a run's first attempt of two; its memory is below `tmp_path` as well."""
    monkeypatch.setattr(commits, "memory_of", lambda run: tmp_path / run)
    monkeypatch.setattr(commits, "_SHARED", str(tmp_path))
    for name, value in (
        *((RUN_ID, "memory"), (commits._USABLE, "1000000"), (commits._MOST, "1")),
        (commits._MADE, "0"),
    ):
        monkeypatch.setenv(name, value)
    for name in (commits.RESUME, ATTEMPT_DIR, CONTINUES):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "disk" / "key.pt"


def attempt(path: Path, *written: object) -> list[object]:
    """What an attempt goes on from; then it writes these."""
    found: list[object] = []
    store = Store(path, FORMAT)
    store.resume(found.append)
    for each in written:
        store._disk.next = 0.0
        store.write(each)
    store.close()
    return found


def test_the_newer_of_disk_and_memory(path: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory" / "key.pt"
    assert attempt(path, 1, 2) == []
    assert load(path) == load(memory) == 2
    assert path.stat().st_mtime_ns == memory.stat().st_mtime_ns  # the number of the commit
    path.unlink()
    assert attempt(path) == [2]
    path.write_bytes(pickle.dumps(3))
    assert attempt(path) == [3]
    os.utime(path, ns=(1, 1))
    assert attempt(path) == [2]
    memory.with_suffix(".new").write_bytes(b"half of it")
    assert attempt(path) == [2]


def test_resume_0_counts_for_the_first_attempt(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(path, 1)
    monkeypatch.setenv(commits.RESUME, "0")
    monkeypatch.setenv(ATTEMPT_DIR, "attempts/2")
    assert attempt(path) == [1]
    monkeypatch.delenv(ATTEMPT_DIR)
    assert attempt(path) == []
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("most", ["0", "1"])
def test_a_run_that_continues_another_goes_on_from_its_memory(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    """As after the loss of the lead host, also where no further attempt follows."""
    before = "20261128-174411-k3vd"
    monkeypatch.setenv(RUN_ID, before)
    attempt(path, 1)
    path.unlink()
    for name, value in ((RUN_ID, "memory"), (CONTINUES, before), (commits._MOST, most)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(commits.RESUME, "0")
    monkeypatch.setattr(cleanup, "memory_of", lambda run: tmp_path / run)
    cleanup.take_over_commits(before, "memory")
    assert attempt(path, 2) == [1]
    assert not (tmp_path / before).exists()
    assert attempt(path) == [2]


@pytest.mark.parametrize(
    ("name", "value"),
    [(commits._MOST, "0"), (commits._MADE, "1"), (RUN_ID, ""), (commits._USABLE, "99")],
)
def test_nothing_is_in_memory(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """One attempt only, the last, outside of a run; more than its part of the memory."""
    monkeypatch.setenv(name, value)
    attempt(path, b"20 bytes and some more", b"20 bytes and some more")
    assert path.exists()
    assert not (tmp_path / "memory").exists()


def test_a_memory_that_cannot_be_written(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory").write_text("in the way")
    assert attempt(path, 1, 2) == []
    assert load(path) == 2
    assert capsys.readouterr().err == ""


def test_what_ended_well_leaves_nothing(path: Path, tmp_path: Path) -> None:
    store = Store(path, FORMAT)
    store.write(1)
    store.remove()
    store.close()
    place = commits._place_in_memory(path)
    assert place is not None
    place.put(lambda file: file.write(b"a"), 5)
    assert place.stamp == 5
    Copy(place).remove()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
