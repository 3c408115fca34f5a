"""Follows the output of a run by reading its logs: the same for a live run and an ended one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from shanty.runtime.frames import STDERR
from shanty.runtime.logfile import Record, parse
from shanty.runtime.rundir import RunDir

LAUNCHER = -1  # the "rank" of what the launcher itself wrote
_CHUNK = 1 << 18  # bytes
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
            attempt = attempts[number]
            log = attempt.launcher_log if rank == LAUNCHER else attempt.rank_log(rank)
            records: list[Record] = []
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


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK)
    except FileNotFoundError:
        return b""


class Printer:
    """Writes lines to a terminal, a pipe or a program.

    With `labels` each line starts with its rank. A begun line is shown at once on a terminal
    (a prompt, a bar) and kept back until it is whole elsewhere, so that no two ranks mix.
    """

    def __init__(
        self, out: BinaryIO, err: BinaryIO, *, labels: bool, colour: bool, live: bool
    ) -> None:
        self._files = {True: err, False: out}
        self._labels = labels
        self._colour = colour
        self._live = live
        self._kept: dict[tuple[int, int], list[bytes]] = {}
        self._open: tuple[int, int] | None = None

    def show(self, lines: Iterable[Line]) -> None:
        """Write the lines; BrokenPipeError when nobody reads any more."""
        for rank, record in lines:
            key = (rank, record.stream)
            if self._live:
                self._show_live(key, record)
            elif record.whole:
                kept = self._kept.pop(key, None)
                text = b"".join(kept) + record.text if kept else record.text
                self._file(key).write(self._label(rank) + text + b"\n")
            else:
                self._kept.setdefault(key, []).append(record.text)
        for file in self._files.values():
            file.flush()

    def finish(self) -> None:
        """Write what was kept back: last lines that never got a newline."""
        for key, texts in self._kept.items():
            end = b"\n" if self._labels else b""
            self._file(key).write(self._label(key[0]) + b"".join(texts) + end)
        self._kept.clear()
        self.break_line()
        for file in self._files.values():
            file.flush()

    def break_line(self) -> None:
        """End a begun line on the terminal, so that something else can be written."""
        if self._open is not None:
            self._file(self._open).write(b"\n")
            self._open = None

    @property
    def at_line_start(self) -> bool:
        """Return false while a begun line stands on the terminal."""
        return self._open is None

    def _show_live(self, key: tuple[int, int], record: Record) -> None:
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


class JsonPrinter:
    """Writes each line as one JSON object; bytes that are no UTF-8 become U+FFFD."""

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
        """Do nothing: there is no begun line."""


def standard_printer(*, labels: bool, colour: bool | None = None) -> Printer:
    """Make a printer to this process's own streams; colours where a terminal reads them."""
    import os

    live = sys.stdout.isatty()
    if colour is None:
        colour = live and "NO_COLOR" not in os.environ
    return Printer(sys.stdout.buffer, sys.stderr.buffer, labels=labels, colour=colour, live=live)
