"""The timeline: what happens to each tensor, as Chrome trace events that Perfetto opens.

The names of the events and their order are those of Horovod's timeline, so its readers find what
they know: each tensor has a lane of its own (a "process" of the trace); in it there is first
NEGOTIATE_ALLREDUCE, until all ranks are ready, then ALLREDUCE, with the activities inside of it.
The format: "Trace Event Format", https://github.com/catapult-project/catapult (JSON array form).

A report of an event is only appended to a queue. A thread turns the queue into text and writes it,
several times a second. The file is a complete JSON array after each write, so it can be read even
after the process was killed. An error with the file stops the timeline, with one warning, and
affects nothing else.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

INTERVAL = 0.2  # seconds between two writes; what a killed process may lose
CLOSING = 10.0  # seconds that `close` waits for the last write
LIMIT = 1 << 18  # reports that may wait for a disk which does not take them
BATCH = 128  # events written at once: others wait some 100 µs for the thread that makes the text
TAIL = b"\n]\n"  # ends the file; the next write goes over it

_NEGOTIATE, _NEGOTIATED, _START, _ACTIVITY, _ACTIVITY_END, _END, _CYCLE = range(7)

_text = lru_cache(maxsize=4096)(json.dumps)


class _Report(NamedTuple):
    """One call of `Timeline`, as it waits in the queue."""

    what: int
    names: tuple[str, ...]
    at: int  # µs since the start
    detail: str = ""
    dtype: str = ""


@dataclass(slots=True)
class _Lane:
    """One tensor: where it stands. open: how many events have begun and not ended."""

    index: int
    negotiating: bool = False
    open: int = 0


class _Script:
    """Turns reports into the text of events. Whatever is reported, the events of a lane nest."""

    def __init__(self, more: Mapping[str, str | int]) -> None:
        self.lines: list[str] = []
        self._lanes: dict[str, _Lane] = {}
        # The lane 0, which holds what belongs to no tensor; and when the time began.
        began = time.time_ns() // 1000
        self._describe(0, {"name": "cycles", "start_time_since_epoch_in_micros": began, **more})

    def add(self, report: _Report, name: str) -> None:
        """Append to `lines` what this report means for one of its names."""
        if report.what == _CYCLE:
            where = f'"ts": {report.at}, "pid": 0, "tid": 0, "s": "g"'
            self.lines.append(f'{{"ph": "i", "name": "CYCLE_START", {where}}}')
        else:
            self._event(report, self._lanes.get(name) or self._new(name, report.what))

    def finish(self, at: int) -> None:
        """End all that is still open."""
        for lane in self._lanes.values():
            self._close(lane, at, ', "args": {"unfinished": true}')

    def _event(self, report: _Report, lane: _Lane) -> None:
        what, at = report.what, report.at
        if what == _NEGOTIATE:  # repeated each time that some rank is not ready
            if not lane.open:
                self._begin(lane, at, report.detail)
                lane.negotiating = True
        elif what == _NEGOTIATED:
            if lane.negotiating:
                self._close(lane, at)
        elif what == _START:
            self._close(lane, at)
            self._begin(lane, at, report.detail)
        elif what == _END:
            dtype, shape = _text(report.dtype.rpartition(".")[2]), _text(report.detail)
            result = f', "args": {{"dtype": {dtype}, "shape": {shape}}}'
            self._close(lane, at, result if report.dtype else "")
        elif lane.open and not lane.negotiating:  # else its start was before this timeline's
            if lane.open == 2:
                self._end(lane, at)
            if what == _ACTIVITY:
                self._begin(lane, at, report.detail)

    def _new(self, name: str, what: int) -> _Lane:
        lane = _Lane(len(self._lanes) + 1)
        if what in (_NEGOTIATE, _START):  # else nothing comes of it
            self._lanes[name] = lane
            self._describe(lane.index, {"name": name})
        return lane

    def _describe(self, index: int, described: Mapping[str, str | int]) -> None:
        where = f'"ph": "M", "pid": {index}, "tid": {index}'
        self.lines += [
            f'{{"name": "process_name", {where}, "args": {json.dumps(described)}}}',
            f'{{"name": "process_sort_index", {where}, "args": {{"sort_index": {index}}}}}',
        ]

    def _begin(self, lane: _Lane, at: int, event: str) -> None:
        lane.open += 1
        self._line("B", lane, at, f', "name": {_text(event)}')

    def _end(self, lane: _Lane, at: int, more: str = "") -> None:
        lane.open -= 1
        self._line("E", lane, at, more)

    def _close(self, lane: _Lane, at: int, more: str = "") -> None:
        """End what is open, from the inside out; `more` belongs to the outermost."""
        while lane.open:
            self._end(lane, at, more if lane.open == 1 else "")
        lane.negotiating = False

    def _line(self, phase: str, lane: _Lane, at: int, more: str) -> None:
        where = f'"ts": {at}, "pid": {lane.index}, "tid": {lane.index}'
        self.lines.append(f'{{"ph": "{phase}", {where}{more}}}')


class _File:
    """A JSON array that grows: complete after each write, also after a failed write."""

    def __init__(self, path: Path, head: list[str]) -> None:
        """Begin a new file with these events; OSError if it cannot be written."""
        # not blocking: a pipe without a reader is then an error, and blocks no caller
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        self._length = 0  # bytes, without the tail
        try:
            self.append(head)
        except OSError:
            with suppress(OSError):
                self.close()
            raise

    def append(self, lines: list[str]) -> None:
        """Append these events, and forget them; OSError if not all of them could be written."""
        if not lines:
            return
        lead = ",\n" if self._length else "[\n"
        data = (lead + ",\n".join(lines)).encode()
        try:
            self._write(data + TAIL)
        except OSError:
            if self._length:  # where the tail stood there is room for it, on a full disk too
                with suppress(OSError):
                    self._write(TAIL)
                    os.ftruncate(self._descriptor, self._length + len(TAIL))
            raise
        self._length += len(data)
        lines.clear()

    def close(self) -> None:
        """Close the file; OSError if the system only now says what it could not write."""
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        rest, at = memoryview(data), self._length
        while rest:
            done = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[done:], at + done


class Timeline:
    """A timeline that is being written to `path`, until `close` or the end of the process.

    more: what else the file says of itself, beside when its time began: by the clock of the date
        and by the host's monotonic one.
    recording: false once it is closed or has failed: what is reported then goes nowhere.

    Its methods may be called from any thread, also after `close`; they cost less than a
    microsecond, never wait and raise nothing. If the file cannot be written, one line on stderr
    says so.

    `names` are tensors' names as the timeline shows them. Events that fit to no start, because it
    was before this timeline's, are left out. `end` is to be called before the request counts as
    done, for its name may come again at once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mark_cycles: bool = False,
        front_end: str = "shanty",
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        self._front_end = front_end
        self.path = Path(path)
        self.mark_cycles = mark_cycles
        self._reports: deque[_Report] = deque()
        self._began = time.perf_counter_ns()
        self._process = os.getpid()
        self._warned = threading.Lock()  # taken by the first to warn, and kept
        self._over = threading.Event()
        self.recording = False
        self._thread: threading.Thread | None = None
        script = _Script({"clock_in_nanos": self._began, **(more or {})})
        try:
            file = _File(self.path, script.lines)
        except OSError as error:
            self._give_up(str(error))
            return
        self.recording = True
        self._thread = threading.Thread(
            target=self._keep, args=(file, script), name="shanty-timeline", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def negotiate_start(self, name: str, kind: str) -> None:
        """This rank has submitted the tensor; `kind` is "allreduce", "broadcast" and so on.

        It may be reported several times; the first counts.
        """
        self._report(_NEGOTIATE, (name,), f"NEGOTIATE_{kind.upper()}")

    def negotiate_end(self, name: str) -> None:
        """All ranks are ready."""
        self._report(_NEGOTIATED, (name,))

    def start(self, name: str, kind: str) -> None:
        """The operation begins; `kind` as in `negotiate_start`."""
        self._report(_START, (name,), kind.upper())

    def activity_start(self, names: Iterable[str], activity: str) -> None:
        """These tensors, which have started, are now in this part of the operation."""
        self._report(_ACTIVITY, tuple(names), activity)

    def activity_end(self, names: Iterable[str]) -> None:
        """These tensors are through with that part."""
        self._report(_ACTIVITY_END, tuple(names))

    def end(self, name: str, shape_text: str = "", dtype_text: str = "") -> None:
        """The operation has ended; both texts are empty if it failed."""
        self._report(_END, (name,), shape_text, dtype_text)

    def mark_cycle(self) -> None:
        """A cycle of the negotiator begins; shown if `mark_cycles` was asked for."""
        if self.mark_cycles:
            self._report(_CYCLE, ("",))

    def close(self) -> None:
        """Write what is left, and stop. What is open ends here, marked as unfinished."""
        thread, self.recording = self._thread, False
        if thread is None or os.getpid() != self._process:  # a fork has no thread, and no say
            return
        self._over.set()
        thread.join(CLOSING)
        if thread.is_alive():
            self._give_up(f"it takes more than {CLOSING:.0f} s to write it")
        self._thread = None
        atexit.unregister(self.close)

    def _now(self) -> int:
        return (time.perf_counter_ns() - self._began) // 1000

    def _report(self, what: int, names: tuple[str, ...], detail: str = "", dtype: str = "") -> None:
        if self.recording:
            self._reports.append(_Report(what, names, self._now(), detail, dtype))
            if len(self._reports) > LIMIT:
                self._give_up("the events come faster than they can be written")

    def _keep(self, file: _File, script: _Script) -> None:
        """The thread: write what has come, from time to time, until it is over."""
        try:
            with closing(file):
                over = False
                while not over:
                    over = self._over.wait(INTERVAL)
                    for _ in range(len(self._reports)):
                        report = self._reports.popleft()
                        for name in report.names:
                            script.add(report, name)
                            if len(script.lines) >= BATCH:
                                file.append(script.lines)
                    if over:
                        script.finish(self._now())
                    file.append(script.lines)
        except OSError as error:
            self._give_up(str(error))
        self._reports.clear()

    def _give_up(self, why: str) -> None:
        self.recording = False
        self._over.set()
        if os.getpid() != self._process or not self._warned.acquire(blocking=False):
            return
        with suppress(OSError, ValueError):  # a stderr that is closed
            text = f"{self._front_end}: the timeline {self.path} is not written any more: {why}."
            print(text, file=sys.stderr, flush=True)
