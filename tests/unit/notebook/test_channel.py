"""What goes between a notebook and its ranks, and how it is taken apart."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest

from shanty.integrations.notebook.display import Bar, Output
from shanty.integrations.notebook.feed import Feed
from shanty.integrations.notebook.interrupts import Interrupts
from shanty.launch.follow import Line
from shanty.runtime.logfile import Record
from shanty.runtime.rundir import RunDir
from shanty.tasks.cell_channel import (
    PUSH,
    RUN,
    Order,
    Outcome,
    as_line,
    encode,
    of_text,
    read_order,
)

OUTCOME = Outcome(3, 1, 2, "b", 5.0, 17)


def test_orders_come_as_they_were_sent() -> None:
    orders = [Order(RUN, 1, body="print('ä\n')".encode()), Order(PUSH, 2, "x", b"\x00\n\x1e" * 9)]
    file = io.BytesIO(b"".join(map(encode, orders)))
    assert [read_order(file), read_order(file), read_order(file)] == [*orders, None]


@pytest.mark.parametrize("cut", [1, 5, 200])
def test_an_order_that_is_cut_off_is_the_end(cut: int) -> None:
    data = encode(Order(RUN, 1, body=b"x" * 300))
    assert read_order(io.BytesIO(data[:-cut])) is None


def test_an_outcome_ends_what_a_rank_wrote() -> None:
    line = as_line(OUTCOME).rstrip(b"\n")
    assert of_text(line) == (b"", OUTCOME)
    assert of_text(b"no newline" + line) == (b"no newline", OUTCOME)
    assert of_text(b"its own \x1e" + line) == (b"its own \x1e", OUTCOME)
    assert of_text(b"its own \x1e byte") == (b"its own \x1e byte", None)


def lines(rank: int, *texts: bytes, stream: int = 1) -> list[Line]:
    return [Line(rank, Record(0.0, stream, t.rstrip(b"\n"), t.endswith(b"\n"))) for t in texts]


def test_output_is_whole_lines_with_their_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(rich=False)
    found = output.show(lines(0, b"one\n", b"\n", b"begun "), None)
    found += output.show(lines(1, b"two\n", stream=2) + lines(0, b"and ended"), None)
    found += output.show(lines(0, as_line(OUTCOME)), None)
    said = capsys.readouterr()
    assert said.out == "[0] one\n[0] \n[0] begun and ended\n"
    assert said.err == "[1] two\n"
    assert found == [(1, OUTCOME)]


def test_of_a_bar_its_last_state_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Output(rich=False).show(lines(0, b"\r10 %\r20 %\n"), None)
    assert capsys.readouterr().out == "[0] 20 %\n"


def test_the_progress_of_a_cell_before_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Bar, "_draw", lambda _self, text, _done, _total: shown.append(text))
    run = RunDir(tmp_path)
    run.progress.write_text(json.dumps({"done": 5, "total": 5, "label": "old", "seconds": 0.0}))
    bar = Bar(run, rich=True)
    bar.tick(last=True)
    run.progress.write_text(json.dumps({"done": 1, "total": 2, "label": "new", "seconds": 0.0}))
    bar.tick(last=True)
    bar.tick(last=True)
    assert shown == ["new 1/2"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_no_child_holds_the_input_of_ranks_open() -> None:
    feed = Feed()
    feed.send(b"a cell")
    assert os.read(feed.source, 100) == b"a cell"
    gone, going = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(going)
        os.read(gone, 1)  # until the parent is done
        os._exit(0)
    os.close(gone)
    try:
        feed.close()
        assert os.read(feed.source, 100) == b""
    finally:
        os.close(going)
        os.close(feed.source)
        os.waitpid(child, 0)


def test_a_feed_that_nobody_reads_is_broken() -> None:
    feed = Feed()
    os.close(feed.source)
    feed.send(b"a cell")
    feed._thread.join(10)
    assert feed.broken


def test_an_interrupt_is_raised_where_it_is_asked_for() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before
