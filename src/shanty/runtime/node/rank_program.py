"""A rank's program, as the node agent of its host knows it."""

from __future__ import annotations

from typing import Set

from shanty.runtime import messages


class RankProgram:
    """A rank's program on this host: its processes, and whether it loaded an MPI."""

    def __init__(self, report: messages.Report, now: float) -> None:
        self.rank, self.world = report.rank, report.world
        self.pids: Set[int] = set()
        self.wrapper = 0
        self.failed = False  # it ends by itself, which takes a moment
        self.started = now
        self.looks = 0
        self.done = False

    def add(self, report: messages.Report) -> None:
        """Note a process of the program; `exec` only wraps it, and passes signals on itself."""
        pid, wrapper = report.whole("pid"), report.whole("exec")
        if pid is not None:
            self.pids.add(pid)
        if wrapper is not None:
            self.wrapper = wrapper

    def report(self, event: str, **values: str) -> messages.Report:
        """Make a report about the rank, which does not send it itself."""
        return messages.Report({"rank": self.rank, "world": self.world, "event": event, **values})
