"""Reading on in the logs of a run."""

from __future__ import annotations

import io
import os
import re
import shutil
from pathlib import Path

import pytest

from shanty.launch.follow import Follower, Line, Printer
from shanty.runtime.frames import FrameWriter
from shanty.runtime.logfile import Record
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


# ------------------------------------------------------- lines that are written over, as bars are


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_a_log_that_another_program_empties(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "20260101-000000-bbbb", 2)
    run.create()
    follower = Follower(run, None, launcher=False)
    found = []
    for text in ("1.0 1 first line\n1.0 1 beg", "2.0 1 next\n"):
        run.rank_log(0).write_text(text)
        found += [line.record.text for line in follower.read()]
    assert found == [b"first line", b"next"]
    shutil.rmtree(run.path)
    assert follower.read() == []


def screen(data: bytes) -> list[str]:
    """The lines that a terminal shows, after all has been written to it."""
    lines = [""]
    for part in re.split(rb"(\r\x1b\[2K|\n|\r)", data):
        if part == b"\n":
            lines.append("")
        elif part.endswith(b"K"):
            lines[-1] = ""
        elif part != b"\r":
            lines[-1] += part.decode().replace("\033[0m", "")
    return lines


def bar(rank: int, step: int, end: str = "") -> Line:
    text = f"\r{step:3}% of it".encode()
    return Line(rank, Record(float(step), 2, text, end == "\n"))


def test_bars_share_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "81")
    out = Terminal()
    printer = Printer(out, out, labels=True, colour=False, live=True)
    for step in range(10):
        printer.show([bar(rank, step) for rank in (1, 0)])
        assert not printer.at_line_start
    assert screen(out.getvalue()) == ["[0]   9% of it [1]   9% of it"]
    printer.show([Line(0, Record(1.0, 1, b"epoch 1", True))])
    assert screen(out.getvalue()) == ["[0] epoch 1", "[0]   9% of it [1]   9% of it"]
    printer.show([bar(0, 10, "\n"), bar(1, 10)])
    assert screen(out.getvalue())[1:] == ["[0]  10% of it", "[1]  10% of it"]
    printer.break_line()
    assert printer.at_line_start
    printer.show([Line(1, Record(1.0, 2, b"", True))])
    printer.finish()
    assert screen(out.getvalue()) == ["[0] epoch 1", "[0]  10% of it", "[1]  10% of it", ""]


def test_states_are_cut_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    printer = Printer(out, out, labels=True, colour=False, live=True)
    printer.show([Line(rank, Record(1.0, 2, b"\r" + b"x" * 300, False)) for rank in range(64)])
    (line,) = screen(out.getvalue())
    assert len(line) <= 99
    assert line.split()[::2] == ["[0]", "[1]", "[2]"]
    printer.finish()
    assert [len(line) for line in screen(out.getvalue())[:64]] == [304] * 10 + [305] * 54


def test_a_prompt_is_shown_at_once() -> None:
    out = Terminal()
    printer = Printer(out, out, labels=False, colour=False, live=True)
    printer.show([Line(0, Record(1.0, 1, b"name? ", False))])
    assert out.getvalue() == b"name? "


@pytest.mark.parametrize("labels", [True, False])
def test_a_file_gets_the_last_state_only(labels: bool) -> None:
    out = io.BytesIO()
    printer = Printer(out, out, labels=labels, colour=False, live=False)
    printer.show([bar(0, 1), bar(0, 2)])
    printer.show([bar(0, 3), bar(0, 4, "\n"), Line(0, Record(5.0, 2, b"\rbegun", False))])
    printer.finish()
    assert out.getvalue() == (b"[0]   4% of it\n[0] begun\n" if labels else b"  4% of it\nbegun")


def test_what_one_rank_writes_in_whole_lines_is_passed_on_as_it_is() -> None:
    out = io.BytesIO()
    printer = Printer(out, out, labels=False, colour=False, live=False)
    printer.show([Line(0, Record(1.0, 1, b"a\rb", True)), Line(0, Record(1.0, 1, b"c\r", True))])
    assert out.getvalue() == b"a\rb\nc\r\n"
