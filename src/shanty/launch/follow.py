"""Follows the output of a run by reading its logs: the same for a live run and an ended one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from shanty.runtime.frames import STDERR, DataStreams, last_state
from shanty.runtime.logfile import Record, parse
from shanty.runtime.rundir import RunDir

LAUNCHER = -1  # the "rank" of what the launcher itself wrote
_CHUNK = 1 << 18  # bytes
_NARROWEST = 30  # columns that the state of a rank is shown in
_CLEAR = b"\r\033[2K"  # the line on which the cursor stands
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class Line(NamedTuple):
    """Holds a record and the rank that wrote it."""

    rank: int
    record: Record


class Follower:
    """Reads on in the logs of a run, each from where it was left."""

    def __init__(self, run: RunDir, ranks: Sequence[int] | None, *, launcher: bool) -> None:
        self._run = run
        self._ranks = ranks
        self._launcher = launcher
        self._offsets: dict[tuple[int, int], int] = {}  # of each attempt's ranks
        self._rest: dict[tuple[int, int], bytes] = {}

    def read(self) -> list[Line]:
        """Read what was written since the last call, in the order of time."""
        run = self._run
        attempts = {number: RunDir(run.path, number) for number in run.attempts()}
        for number, attempt in attempts.items():
            if self._launcher:
                self._offsets.setdefault((number, LAUNCHER), 0)
            for rank in attempt.rank_logs():
                if self._ranks is None or rank in self._ranks:
                    self._offsets.setdefault((number, rank), 0)
        stamped: list[tuple[float, Line]] = []
        for key, offset in self._offsets.items():
            number, rank = key
            attempt = attempts.get(number) or RunDir(run.path, number)
            log = attempt.launcher_log if rank == LAUNCHER else attempt.rank_log(rank)
            records: list[Record] = []
            if _size(log, offset) < offset:  # another program has emptied it
                offset = self._offsets[key] = 0
                self._rest.pop(key, None)
            while not records and (new := _read(log, offset)):  # a line may take several chunks
                offset = self._offsets[key] = offset + len(new)
                data = self._rest.pop(key, b"") + new
                records, used = parse(data)
                if used < len(data):
                    self._rest[key] = data[used:]
            latest = 0.0
            for record in records:  # a clock that is set back must not turn a rank's lines round
                latest = max(latest, record.time)
                stamped.append((latest, Line(rank, record)))
        stamped.sort(key=lambda pair: pair[0])
        return [line for _, line in stamped]


def _size(path: Path, unknown: int) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return unknown


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK)
    except (FileNotFoundError, NotADirectoryError):
        return b""


class Excerpt:
    """Passes on the whole lines after the first `skip`, at most `limit` of them."""

    def __init__(self, skip: int = 0, limit: int | None = None) -> None:
        self._skip = skip
        self._left = limit

    @property
    def over(self) -> bool:
        """Return true when no more lines are wanted."""
        return self._left == 0

    def of(self, lines: Iterable[Line]) -> list[Line]:
        """Return those of the next lines that are wanted; a part of a line goes with its end."""
        found = []
        for line in lines:
            if self._skip == 0 and not self.over:
                found.append(line)
            if line.record.whole:
                if self._skip:
                    self._skip -= 1
                elif self._left:
                    self._left -= 1
        return found


class Printer:
    """Writes lines to a terminal, a pipe or a program.

    With `labels` each line starts with its rank. A terminal shows a begun line (a prompt) at once;
    elsewhere it is kept back until it is whole, so that no two ranks mix. A terminal shows the
    latest states of lines that are written over (bars of progress) side by side in one line; when
    these lines are whole, their last states stay.
    """

    def __init__(
        self, out: BinaryIO, err: BinaryIO, *, labels: bool, colour: bool, live: bool
    ) -> None:
        self._files = {True: err, False: out}
        self._labels = labels
        self._colour = colour
        self._live = live
        self._kept: dict[tuple[int, int], list[bytes]] = {}
        self._data = DataStreams()
        self._open: tuple[int, int] | None = None
        self._states: dict[tuple[int, int], bytes] = {}
        self._drawn: BinaryIO | None = None  # where the states are to be seen

    def show(self, lines: Iterable[Line]) -> None:
        """Write the lines; BrokenPipeError when nobody reads any more."""
        for rank, record in lines:
            key = (rank, record.stream)
            if self._live and not self._takes_state(key, record):
                self._show_live(key, record)
            elif not self._live and record.whole:
                kept = self._kept.pop(key, [])
                text = b"".join([*kept, record.text])
                text = self._state(key, text) if kept or self._labels else text
                self._file(key).write(self._label(rank) + text + b"\n")
            elif not self._live:
                kept = self._kept.setdefault(key, [])
                kept.append(record.text)
                if b"\r" in record.text and not self._data.has(key, record.text):
                    kept[:] = [last_state(b"".join(kept))]
        self._draw_states()
        for file in self._files.values():
            file.flush()

    def finish(self) -> None:
        """Write what was kept back: last lines that never got a newline."""
        for key, texts in self._kept.items():
            end = b"\n" if self._labels else b""
            self._file(key).write(self._label(key[0]) + self._state(key, b"".join(texts)) + end)
        self._kept.clear()
        self._clear_states()
        for key, text in self._states.items():
            self._file(key).write(self._label(key[0]) + _shown(text) + b"\n")
        self._states.clear()
        self.break_line()
        for file in self._files.values():
            file.flush()

    def _state(self, key: tuple[int, int], line: bytes) -> bytes:
        return line if b"\r" not in line or self._data.has(key, line) else _shown(line)

    def break_line(self) -> None:
        """End a begun line on the terminal, so that something else can be written."""
        self._clear_states()
        if self._open is not None:
            self._file(self._open).write(b"\n")
            self._open = None

    @property
    def at_line_start(self) -> bool:
        """Return false while a begun line stands on the terminal."""
        return self._open is None and self._drawn is None

    def _takes_state(self, key: tuple[int, int], record: Record) -> bool:
        """Take the new state of a line that is written over, on a terminal; True if it is one."""
        before = self._states.get(key)
        if before is None and (record.whole or b"\r" not in record.text):
            return False
        if not self._file(key).isatty():
            return False
        text = last_state((before or b"") + record.text)
        if self._open == key:
            self._file(key).write(_CLEAR)  # what was begun is what is written over
            self._open = None
        if record.whole:
            del self._states[key]
            self._show_live(key, record._replace(text=_shown(text)))
        else:
            self._states[key] = text
        return True

    def _draw_states(self) -> None:
        """Show the states of as many ranks as find room in a line."""
        if not self._states or self._open is not None:
            return
        width = shutil.get_terminal_size().columns - 1
        keys = sorted(self._states)[: max(1, width // _NARROWEST)]
        share = width // len(keys)
        texts = []
        for key in keys:
            rank = f"[{key[0]}] " if self._label(key[0]) else ""
            state = rank + _shown(self._states[key]).decode(errors="replace").rstrip()
            texts.append(state[: share - 1] if len(keys) > 1 else state[:share])
        self._drawn = self._file(keys[0])
        self._drawn.write(_CLEAR + " ".join(texts).encode() + b"\033[0m")
        self._drawn.flush()

    def _clear_states(self) -> None:
        if self._drawn is not None:
            self._drawn.write(_CLEAR)
            self._drawn.flush()
            self._drawn = None

    def _show_live(self, key: tuple[int, int], record: Record) -> None:
        self._clear_states()
        if self._open == key:
            start = b""
        else:
            self.break_line()
            start = self._label(key[0])
        self._file(key).write(start + record.text + (b"\n" if record.whole else b""))
        self._file(key).flush()
        self._open = None if record.whole else key

    def _file(self, key: tuple[int, int]) -> BinaryIO:
        return self._files[key[1] == STDERR]

    def _label(self, rank: int) -> bytes:
        if not self._labels or rank == LAUNCHER:
            return b""
        text = f"[{rank}]"
        if self._colour:
            return f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m ".encode()
        return f"{text} ".encode()


def _shown(line: bytes) -> bytes:
    """Return what a terminal would show of a line that was written over."""
    return last_state(line).lstrip(b"\r")


class JsonPrinter:
    """Writes each line as one JSON object; invalid UTF-8 becomes U+FFFD."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    at_line_start = True

    def show(self, lines: Iterable[Line]) -> None:
        """Write the lines as `{"event": "output", …}`."""
        for rank, record in lines:
            self.event(
                "output",
                rank=None if rank == LAUNCHER else rank,
                stream="stderr" if record.stream == STDERR else "stdout",
                time=record.time,
                text=record.text.decode("utf-8", "replace"),
                whole=record.whole,
            )
        self._out.flush()

    def event(self, kind: str, **more: Any) -> None:
        """Write one object."""
        self._out.write((json.dumps({"event": kind, **more}) + "\n").encode())
        self._out.flush()

    def finish(self) -> None:
        """Do nothing: no line is kept back."""

    def break_line(self) -> None:
        """Do nothing: no line is ever begun."""


def standard_printer(*, labels: bool) -> Printer:
    """Make a printer to this process's own streams; colours where a terminal reads them."""
    live = sys.stdout.isatty()
    colour = live and "NO_COLOR" not in os.environ
    return Printer(sys.stdout.buffer, sys.stderr.buffer, labels=labels, colour=colour, live=live)
