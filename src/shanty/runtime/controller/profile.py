"""Puts a run's profile together: one Chrome trace of the launch and of all ranks, on one clock.

The ranks' parts are timelines (`collectives/timeline.py`), each by the monotonic clock of its host.
Their times are converted to the clock of the lead host, and to its date, which the events of the
launch have. In the trace each rank is a process, and each of its tensors a thread.
The format: "Trace Event Format", https://github.com/catapult-project/catapult (JSON array form).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from shanty.runtime import platform
from shanty.runtime.rundir import RunDir, json_objects, read_lines

if TYPE_CHECKING:
    from shanty.runtime.controller.worker_link import ClockOffset

PATIENCE = 60.0  # seconds for the ranks' parts; the trace lacks the parts that take longer
_LAUNCH = 1  # its row: the "pid" of the trace; in Perfetto 0 is the kernel's
_PHASES, _STALLS, _NOTES = 1, 2, 3  # the "tid"s of the launch
_PROCESS = 1  # that of a rank's own life; those of its tensors follow
_LOOK = 4096  # events between two looks at the clock
Row = tuple[int, str]  # rank and host


def write(run: RunDir, lead: str, offsets: Mapping[str, ClockOffset]) -> None:
    """Write `artifacts/profile.json` of a run that has ended, and remove the ranks' parts.

    lead: the name of the lead host, which is this host. offsets: the offsets of the other hosts'
    clocks. Parts of hosts that only an earlier attempt had are left out, as their clocks are not
    known. It never fails: a run must not fail because of its profile.
    """
    clocks: dict[str, Callable[[float], float]] = {lead: lambda at: at}
    clocks.update((name, offset.here) for name, offset in offsets.items())
    temporary = run.profile.with_name(".profile.json")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            whole = _Trace(file).put_together(run, clocks)
        os.replace(temporary, run.profile)
        if whole:
            shutil.rmtree(run.profile_parts, ignore_errors=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        with contextlib.suppress(OSError):
            print(f"no profile: {type(error).__name__}: {error}", flush=True)
            temporary.unlink()


class _Trace:
    """One trace, as it is written; times are seconds since 1970 up to `_put`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._zero = 0.0
        self._lead = "["
        self._rows: dict[Row, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def put_together(self, run: RunDir, clocks: Mapping[str, Callable[[float], float]]) -> bool:
        """Write all; False where the parts were too large for the time available."""
        events = read_lines(run.events)
        parts = list(_parts(run.profile_parts))
        rows = {(int(e["report"]["rank"]), str(e["report"].get("host"))) for e in _of_ranks(events)}
        rows |= {(int(about["rank"]), str(about["host"])) for _, about in parts}
        self._rows = {row: _LAUNCH + 1 + place for place, row in enumerate(sorted(rows))}
        self._name_rows()
        self._launch(events, read_lines(run.stalls))
        self._ranks(events)
        ahead = time.time() - time.monotonic()
        until, whole = time.monotonic() + PATIENCE, True
        for path, about in parts:
            clock = clocks.get(str(about["host"]))
            if clock is not None and whole:
                begun = clock(about["clock_in_nanos"] / 1e9) + ahead
                whole = self._part(path, about, begun, until)
        self._file.write("\n]\n")
        return whole

    def _put(self, event: Mapping[str, Any], at: float = 0.0, lasts: float = -1.0) -> None:
        """Write one event that begins at `at` (if not 0) and lasts so many seconds (if not < 0)."""
        row = dict(event)
        if at:
            self._zero = self._zero or at
            row["ts"] = round((at - self._zero) * 1e6)
        if lasts >= 0:
            row["dur"] = round(lasts * 1e6)
        self._file.write(f"{self._lead}\n{json.dumps(row)}")
        self._lead = ","

    def _describe(self, kind: str, row: int, thread: int, **args: Any) -> None:
        self._put({"ph": "M", "name": kind, "pid": row, "tid": thread, "args": args})

    def _name_rows(self) -> None:
        names = {_LAUNCH: "launch"}
        names.update((row, f"rank {rank} on {host}") for (rank, host), row in self._rows.items())
        for row, name in names.items():
            self._describe("process_name", row, 1, name=name)
            self._describe("process_sort_index", row, 1, sort_index=row)
        for thread, name in ((_PHASES, "phases"), (_STALLS, "stalls"), (_NOTES, "events")):
            self._describe("thread_name", _LAUNCH, thread, name=name)
        for row in self._rows.values():
            self._describe("thread_name", row, _PROCESS, name="process")

    def _launch(
        self, events: Sequence[Mapping[str, Any]], stalls: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the phases of the launch, and the events of the run as a whole."""
        for name, since, until in _phases(events):
            phase = {"ph": "X", "name": name, "pid": _LAUNCH, "tid": _PHASES}
            self._put(phase, since, max(0.0, until - since))
        for stall in stalls:
            quiet, args = float(stall["quiet"]), {"what": stall["what"]}
            shown = {"ph": "X", "name": "stall", "pid": _LAUNCH, "tid": _STALLS, "args": args}
            self._put(shown, stall["time"] - quiet, quiet)
        for event in events:
            if event["event"] in ("launching", "failure", "stopping", "attempt", "stall"):
                self._instant(event["event"], event["time"], _LAUNCH, _NOTES)

    def _ranks(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Write from when to when each rank's program ran, and when it joined."""
        up: dict[Row, float] = {}
        for event in _of_ranks(events):
            report = event["report"]
            row = (int(report["rank"]), str(report.get("host")))
            if event["event"] == "rank-started":
                up[row] = event["time"]
            elif event["event"] == "rank-joined":
                self._instant("joined", event["time"], self._rows[row], _PROCESS)
            elif event["event"] == "rank-exited" and row in up:
                self._program(row, up.pop(row), event["time"], code=report.get("code"))
        for row, since in up.items():  # its end was not reported
            self._program(row, since, time.time(), unfinished=True)

    def _program(self, row: Row, since: float, until: float, **args: Any) -> None:
        event = {
            "ph": "X",
            "name": "program",
            "pid": self._rows[row],
            "tid": _PROCESS,
            "args": args,
        }
        self._put(event, since, max(0.0, until - since))

    def _instant(self, name: str, at: float, row: int, thread: int) -> None:
        self._put({"ph": "i", "name": name, "pid": row, "tid": thread, "s": "p"}, at)

    def _part(self, path: Path, about: Mapping[str, Any], begun: float, until: float) -> bool:
        """Add one rank's timeline, whose time began at `begun`; False if time ran out."""
        row = self._rows[int(about["rank"]), str(about["host"])]
        threads: dict[int, int] = {}  # by the timeline's own number of a tensor
        for count, event in enumerate(_lines(path)):
            if count % _LOOK == 0 and time.monotonic() > until:
                self._instant("cut off here", time.time(), row, _PROCESS)
                return False
            lane = event["pid"]
            if event["ph"] == "M":
                if event["name"] == "process_name":
                    threads[lane] = self._thread(row, event["args"]["name"])
                continue
            if lane in threads:
                moved = {**event, "pid": row, "tid": threads[lane]}
                self._put(moved, begun + event["ts"] / 1e6)
        return True

    def _thread(self, row: int, name: str) -> int:
        """Return the thread of this tensor in a row; a script may begin several timelines."""
        if (row, name) not in self._threads:
            thread = _PROCESS + 1 + sum(of == row for of, _ in self._threads)
            self._threads[row, name] = thread
            self._describe("thread_name", row, thread, name=name)
            self._describe("thread_sort_index", row, thread, sort_index=thread)
        return self._threads[row, name]


def _parts(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the ranks' timelines, each with its own description."""
    for path in sorted(folder.glob("*.json")):
        about = next(_lines(path), {}).get("args", {})
        if {"rank", "host", "clock_in_nanos"} <= set(about):
            yield path, about


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a timeline, one a line; other lines are skipped."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for event in json_objects(line.rstrip().rstrip(",") for line in file):
            if {"ph", "pid"} <= event.keys():
                yield event


def _of_ranks(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in events if "rank" in each.get("report", {})]


def _phases(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Yield each phase of the run with its begin and end; the last phase ends now."""
    name, since = "", 0.0
    for event in events:
        if event["event"] != "state":
            continue
        status = event["status"]
        if not name and status.get("boot") == platform.boot_id():  # made by this machine's clock
            yield "submitted", min(status["created"], event["time"]), event["time"]
        if name:
            yield name, since, event["time"]
        name, since = status["state"], event["time"]
    if name:
        yield name, since, time.time()
