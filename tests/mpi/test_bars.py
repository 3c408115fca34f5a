"""tqdm's bars: a line on the terminal and a few in the log, not thousands."""

from __future__ import annotations

import os
import pty
import re
import select
import time

import pytest

from shanty.runtime.logfile import read_records

pytest.importorskip("tqdm")

BARS = """
import os, time
from tqdm import tqdm
rank = os.environ["RANK"]
for epoch in range(2):
    for step in tqdm(range(300), desc=f"epoch {epoch}", mininterval=0):
        time.sleep(0.01)
    print(f"rank {rank} did epoch {epoch}")
"""


def records(shanty, rank):
    return list(read_records(str(shanty.last.rank_log(rank))))


def test_a_log_has_a_state_a_second_and_the_last(shanty):
    done = shanty("run", "-n", 2, shanty.script(BARS))
    assert done.returncode == 0, done.stderr
    took = shanty.status()["ended"] - shanty.status()["started"]
    for rank in (0, 1):
        states = [record for record in records(shanty, rank) if record.stream == 2]
        assert 4 <= len(states) <= took + 6
        whole = [record.text for record in states if record.whole]
        assert len(whole) == 2
        assert all(b"300/300" in text for text in whole)
        shown = [line for line in done.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert len(shown) == 2
        for epoch, line in enumerate(shown):
            assert line.startswith(f"[{rank}] epoch {epoch}: 100%")
            assert "300/300" in line
        assert f"[{rank}] rank {rank} did epoch 1" in done.stdout.splitlines()


def test_a_terminal_has_one_line_for_them(shanty):
    ours, theirs = pty.openpty()
    script = shanty.script(BARS)
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = shanty.start("run", "-n", 2, script, env={"COLUMNS": "100"}, **streams)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 60
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        assert time.monotonic() < deadline
        if select.select([ours], [], [], 0.2)[0]:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # nobody has it any more
                break
    os.close(ours)
    assert process.wait(timeout=30) == 0
    text = seen.decode(errors="replace")
    # A line was cleared before what stays was written: of bars, or of how far the run is.
    lines = [re.split(r"\x1b\[2?K", line)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    for label in ("\x1b[36m[0]\x1b[0m", "\x1b[32m[1]\x1b[0m"):
        mine = [line for line in lines if line.startswith(label)]
        assert len(mine) == 4, mine  # two bars, two lines
        assert sum("300/300" in line for line in mine) == 2
    # While they are on: both ranks' states, in a line that is drawn over.
    assert any("[0] epoch 0" in part and "[1] epoch 0" in part for part in text.split("\x1b[2K"))
    assert len(lines) < 20
