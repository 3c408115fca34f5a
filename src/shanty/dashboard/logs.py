"""Reads logs by windows of bytes, so that a log of any size costs what is shown of it.

An offset is a place in the log's file, where a line begins. Any other number is taken for the next
line's. Of a line that is longer than the window only the beginning is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shanty.dashboard.errors import Refused
from shanty.dashboard.models import LogWindow
from shanty.runtime.frames import STDOUT
from shanty.runtime.logfile import Record, parse, read_records
from shanty.runtime.rundir import RunDir

LARGEST = 1 << 20  # bytes of a window
LAUNCHER, AGENT = "launcher", "agent"
_HEADER = 64  # bytes that may stand before the text of a line


def log_of(run: RunDir, rank: str) -> Path:
    """Return the log of a rank, of the launcher or of the agents; 404 for any other name."""
    if rank == LAUNCHER:
        return run.launcher_log
    if rank == AGENT:
        return run.agent_log
    if rank.isascii() and rank.isdigit() and len(rank) <= 7:
        return run.rank_log(int(rank))
    raise Refused(404, f"log {rank[:32]!r} not found", "", "a number, launcher or agent")


def attempt_of(run: RunDir, attempt: int | None) -> RunDir:
    """Return the run's files of that attempt, of the newest for None; 404 for none of them."""
    attempts = run.attempts()
    if attempt is not None and attempt not in attempts:
        raise Refused(404, f"run {run.id} has no attempt {attempt}", "", f"it has {attempts}")
    return RunDir(run.path, attempts[-1] if attempt is None else attempt)


def size_of(path: Path) -> int:
    """Return the size of a log; 0 where it is not there yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def window(path: Path, at: int | None, *, back: bool, length: int) -> LogWindow:
    """Read `length` bytes from `at` on, or those before it; `at` None is the end.

    The window's `begin` and `end` are where to go on, either way.
    """
    size = size_of(path)
    at = size if at is None else min(at, size)
    begin, end = (max(0, at - length), at) if back else (at, min(size, at + length))
    try:
        with path.open("rb") as file:
            begin, data = _from_line(file.fileno(), begin, end)
    except FileNotFoundError:
        data = b""
    lines, used = lines_of(data, begin)
    within = at < size if back else len(data) >= length - 1 and not lines
    if within and used < len(data):  # the beginning of a long line, none that is being written
        lines, used = lines_of(data + b"\n", begin)
        lines[-1]["whole"] = False
        used = len(data)
    elif not lines and back and within:  # the middle of one
        begin, used = max(0, at - length), 0
    places = {"begin": begin, "end": begin + used, "size": size}
    return LogWindow.model_validate({"rank": 0, "attempt": 1, **places, "lines": lines})


def _from_line(file: int, begin: int, end: int) -> tuple[int, bytes]:
    """Return the bytes from the first line's begin on, and where that is."""
    if begin == 0 or begin >= end:
        return begin, os.pread(file, max(0, end - begin), begin)
    data = os.pread(file, end - begin + 1, begin - 1)
    cut = data.find(b"\n") + 1
    if cut == 0:  # all of it is the middle of a line
        return end, b""
    return begin - 1 + cut, data[cut:]


def lines_of(data: bytes, begin: int) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines in `data`, which begins at `begin`, and how many bytes they are.

    A line has the fields of `LogLine`; there may be many of them a second.
    """
    records, used = parse(data)
    lines, offset = [], begin
    for record, raw in zip(records, data[:used].split(b"\n"), strict=False):
        lines.append(_line(record, offset))
        offset += len(raw) + 1
    return lines, used


def _line(record: Record, offset: int) -> dict[str, Any]:
    return {
        "offset": offset,
        "time": record.time or None,
        "stream": "stdout" if record.stream == STDOUT else "stderr",
        "text": record.text.decode("utf-8", "replace"),
        "whole": record.whole,
    }


def next_line(path: Path, at: int) -> int:
    """Return where the first line at or after `at` begins; `at` where none has begun."""
    if at <= 0:
        return 0
    try:
        with path.open("rb") as file:
            data = os.pread(file.fileno(), LARGEST + _HEADER, at - 1)
    except OSError:
        return at
    return at + data.find(b"\n") if b"\n" in data else at


def plain_text(path: Path) -> Iterator[bytes]:
    """Yield the text of a log as the rank wrote it, both streams in their order."""
    pieces: list[bytes] = []
    kept = 0
    for record in read_records(str(path), 1 << 18):
        piece = record.text + b"\n" if record.whole else record.text
        pieces.append(piece)
        kept += len(piece)
        if kept >= 1 << 16:
            yield b"".join(pieces)
            pieces, kept = [], 0
    yield b"".join(pieces)
