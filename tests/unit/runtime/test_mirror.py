"""Copies of a run's files while they grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.run_mirror import _COPIED
from shanty.runtime.mirror import APPENDED, REPLACED, Change, Mirror, is_safe, may_write, put


@given(st.lists(st.binary(max_size=300), max_size=12))
def test_a_mirror_of_growing_files(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    (here / "logs").mkdir()
    mirror = Mirror(here, ("logs/rank-*.log", "metrics.jsonl"), ())
    for index, piece in enumerate(pieces):
        with (here / "logs" / f"rank-{index % 3}.log").open("ab") as file:
            file.write(piece)
        with (here / "metrics.jsonl").open("ab") as file:
            file.write(piece)
        for change in mirror.changes():
            put(there, change)
    for path in here.glob("logs/*"):
        copy = there / "logs" / path.name
        assert (copy.read_bytes() if copy.exists() else b"") == path.read_bytes()
    lines = b"".join(pieces)
    copied = (there / "metrics.jsonl").read_bytes() if (there / "metrics.jsonl").exists() else b""
    assert copied == lines[: lines.rfind(b"\n") + 1]  # whole lines only


def test_a_change_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        put(tmp_path, Change("logs/a", 0, b"12345"))
        put(tmp_path, Change("logs/a", 5, b"678"))
        put(tmp_path, Change("progress.json", None, b"{}"))
    assert (tmp_path / "logs/a").read_bytes() == b"12345678"
    assert (tmp_path / "progress.json").read_bytes() == b"{}"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a\0b"])
def test_a_host_cannot_write_outside_the_run(path: str) -> None:
    assert not is_safe(path)


def test_artifacts_are_mirrored_whole(tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "deep").mkdir(parents=True)
    (tmp_path / "artifacts" / "deep" / "big").write_bytes(os.urandom(300_000))
    (tmp_path / "artifacts" / "empty").touch()
    (tmp_path / "artifacts" / "link").symlink_to("/etc/passwd")
    copy = tmp_path / "copy"
    for change in Mirror(tmp_path).artifacts():
        put(copy, change)
    big = "artifacts/deep/big"
    assert (copy / big).read_bytes() == (tmp_path / big).read_bytes()
    assert (copy / "artifacts/empty").read_bytes() == b""
    assert not (copy / "artifacts/link").exists()


@pytest.mark.parametrize(
    ("path", "workers", "leads"),
    [
        ("logs/rank-3.log", True, True),
        ("stacks/rank-3.txt", True, True),
        ("metrics.jsonl", True, True),
        ("progress.json", True, True),
        ("artifacts/deep/model", True, True),
        ("logs/launcher.log", False, True),
        ("events.jsonl", False, True),
        ("status.json", False, True),
        ("bin/ssh", False, False),
        ("key", False, False),
        ("asks/1.ask", False, False),
        ("site.json", False, False),
        ("deep/progress.json", False, False),
        ("artifacts", False, False),
        ("artifacts/../bin/ssh", False, False),
    ],
)
def test_what_another_host_may_write(path: str, workers: bool, leads: bool) -> None:
    """Not what is run (bin/), nor what says how hosts are reached (site.json)."""
    assert may_write(path, (*APPENDED, *REPLACED)) == workers
    assert may_write(path, _COPIED) == leads


def test_a_line_that_is_longer_than_a_piece(tmp_path: Path) -> None:
    """It goes over as a whole, and does not hold up what comes after it."""
    lines = b"a" * 300_000 + b"\n" + b"b\n"
    (tmp_path / "metrics.jsonl").write_bytes(lines + b"begun")
    copy = tmp_path / "copy"
    for change in Mirror(tmp_path, ("metrics.jsonl",), ()).changes():
        put(copy, change)
    assert (copy / "metrics.jsonl").read_bytes() == lines


def test_a_log_that_another_program_empties(tmp_path: Path) -> None:
    """The copy keeps what it had, and what is written after that is added."""
    here, there = tmp_path / "here", tmp_path / "there"
    log = here / "logs" / "rank-0.log"
    log.parent.mkdir(parents=True)
    mirror = Mirror(here)
    for text, kept in (("one\n", 4), ("2\n", 0), ("3\n", 2), ("4\n", 0)):
        os.truncate(log, kept) if log.exists() else None
        with log.open("a") as file:
            file.write(text)
        for change in mirror.changes():
            put(there, change)
    assert (there / "logs/rank-0.log").read_text() == "one\n2\n3\n4\n"
