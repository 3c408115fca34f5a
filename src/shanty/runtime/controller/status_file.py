"""The files in which the controller of a run writes down where the run stands and what happened."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from typing import Any

from shanty.runtime.rundir import RunDir, append_line, read_json, write_json
from shanty.runtime.spec import Status


class StatusFile:
    """`status.json` and `events.jsonl` of a run; a full disk does not stop the controller."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        known = read_json(run.status)
        self.status = Status.from_json(known) if known else Status.new(None)

    def update(self, **changes: Any) -> None:
        """Change the status where it differs."""
        if any(getattr(self.status, key) != value for key, value in changes.items()):
            self.write(**changes)

    def write(self, **changes: Any) -> None:
        """Change the status, on disk as well."""
        before = self.status.state
        self.status = replace(self.status, **changes)
        if self.status.state.final:
            self.status = replace(self.status, stalled=None, activity="")  # it has ended now
            with contextlib.suppress(OSError):
                self._run.reserve.unlink()  # room for this status; no rank can take it now
        try:
            write_json(self._run.status, self.status.to_json())
        except OSError as error:
            with contextlib.suppress(OSError):  # the log is on the same full disk
                print(f"status not written: {error}", file=sys.stderr, flush=True)
        if self.status.state is not before:
            self.event("state", status=self.status.to_json())

    def event(self, kind: str, **more: object) -> None:
        """Write down that something happened."""
        with contextlib.suppress(OSError):
            append_line(self._run.events, {"time": time.time(), "event": kind, **more})
