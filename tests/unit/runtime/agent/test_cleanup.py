"""What the sweep takes, and above all what it leaves."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from shanty.launch.follow import Follower
from shanty.runtime import platform
from shanty.runtime.agent import cleanup
from shanty.runtime.frames import FrameWriter
from shanty.runtime.rundir import RunDir

pytestmark = pytest.mark.skipif(not platform.SHARED_MEMORY, reason="there is no /dev/shm here")


@pytest.fixture
def segment():
    """A function that makes a file in /dev/shm; all are removed afterwards."""
    made: list[Path] = []

    def make(name: str) -> Path:
        path = Path(platform.SHARED_MEMORY, f"{name}-{os.getpid()}")
        path.write_bytes(bytes(4096))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def test_forgotten_segments_go_and_others_stay(segment, tmp_path):
    before = time.time() - 1
    forgotten, stranger = segment("shantytest_seg"), segment("precious")
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    removed = cleanup.sweep(str(scratch), (), ["shantytest_seg-*"], before)
    assert not forgotten.exists()
    assert not scratch.exists()
    assert stranger.exists()
    assert set(removed) == {str(forgotten), str(scratch)}


def test_what_is_older_than_the_run_or_in_use_stays(segment, tmp_path):
    old = segment("shantytest_old")
    assert cleanup.sweep(str(tmp_path / "x"), (), ["shantytest_*"], time.time() + 60) == []
    with old.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        cleanup.sweep(str(tmp_path / "x"), [str(old)], ["shantytest_*"], time.time() - 60)
        assert old.exists()


def test_a_users_own_file_that_was_there_before_is_not_the_runs(segment):
    data = segment("imagenet")
    with data.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert str(data) in cleanup.shared_memory_of([os.getpid()], time.time() - 60)
        assert str(data) not in cleanup.shared_memory_of([os.getpid()], time.time() + 60)


def test_a_line_of_many_chunks_is_followed(tmp_path):
    run = RunDir(tmp_path / "20260101-000000-bbbb")
    run.create()
    fd = os.open(run.rank_log(0), os.O_WRONLY | os.O_CREAT)
    writer = FrameWriter(fd, 1 << 30)
    writer.feed(1, b"x" * 900_000 + b"\nlast\n")
    writer.close()
    os.close(fd)
    follower = Follower(run, None, False)
    texts = [line.record.text for lines in iter(follower.read, []) for line in lines]
    assert texts == [b"x" * 900_000, b"last"]


def test_a_clock_that_is_set_back_does_not_turn_lines_round(tmp_path):
    run = RunDir(tmp_path / "20260101-000000-bbbb")
    run.create()
    stamps = [5.0, 3.0, 4.0, 6.0]
    text = "".join(f"{stamp:.6f} 1 {number}\n" for number, stamp in enumerate(stamps))
    run.rank_log(0).write_text(text)
    follower = Follower(run, None, False)
    assert [line.record.text for line in follower.read()] == [b"0", b"1", b"2", b"3"]
