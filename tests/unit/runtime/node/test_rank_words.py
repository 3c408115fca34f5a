"""What a node agent tells the ranks of an elastic run, and when it stops them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.node.rank_words import PATIENCE, RankWords
from shanty.runtime.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create()
    return run


def test_words_wait_until_a_rank_listens(run: RunDir) -> None:
    words = RankWords(run)
    words.add([1], "lost 0")
    words.add([1], "confirmed 0")
    os.mkfifo(run.rank_word(1))
    words.tick()  # nobody has it open
    fifo = os.open(run.rank_word(1), os.O_RDWR)
    try:
        words.tick()
        words.tick()
        assert os.read(fifo, 100) == b"lost 0\nconfirmed 0\n"
    finally:
        os.close(fifo)


def test_a_rank_that_never_listens(run: RunDir) -> None:
    words = RankWords(run)
    began = time.monotonic()
    words.add([1, 2], "lost 0")
    os.mkfifo(run.rank_word(1))
    fifo = os.open(run.rank_word(1), os.O_RDWR)
    try:
        words.tick()
    finally:
        os.close(fifo)
    assert words.deaf(began + PATIENCE) == []
    late = time.monotonic() + PATIENCE + 1
    assert words.deaf(late) == [2]
    assert words.deaf(late) == []


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_ranks_stand_still_while_the_controller_is_silent(run: RunDir, sleeper: int) -> None:
    def state() -> str:
        process = platform.process(sleeper)
        return process.state if process is not None else ""

    words = RankWords(run)
    for pause, there in ((False, "S"), (True, "T"), (True, "T"), (False, "S")):
        words.pause(lambda: [sleeper, 2**22 + 1], pause=pause)  # the other one has ended
        wait_for(lambda there=there: state() == there, 5, state())
