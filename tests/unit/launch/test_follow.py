"""Reading on in the logs of a run."""

from __future__ import annotations

import os
from pathlib import Path

from shanty.launch.follow import Follower
from shanty.runtime.frames import FrameWriter
from shanty.runtime.rundir import RunDir


def test_a_line_of_many_chunks_is_followed(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "20260101-000000-bbbb")
    run.create()
    fd = os.open(run.rank_log(0), os.O_WRONLY | os.O_CREAT)
    writer = FrameWriter(fd, 1 << 30)
    writer.feed(1, b"x" * 900_000 + b"\nlast\n")
    writer.close()
    os.close(fd)
    follower = Follower(run, None, launcher=False)
    texts = [line.record.text for lines in iter(follower.read, []) for line in lines]
    assert texts == [b"x" * 900_000, b"last"]


def test_a_clock_that_is_set_back_does_not_turn_lines_round(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "20260101-000000-bbbb")
    run.create()
    stamps = [5.0, 3.0, 4.0, 6.0]
    text = "".join(f"{stamp:.6f} 1 {number}\n" for number, stamp in enumerate(stamps))
    run.rank_log(0).write_text(text)
    follower = Follower(run, None, launcher=False)
    assert [line.record.text for line in follower.read()] == [b"0", b"1", b"2", b"3"]
