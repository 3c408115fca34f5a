"""A rank's program, as the node agent of its host knows it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from typing import Set

from shanty.runtime import messages, platform


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

    @property
    def is_unwrapped(self) -> bool:
        """True when its `exec` is gone, and has not reported the program's end."""
        wrapper = platform.process(self.wrapper) if self.pids and self.wrapper else None
        return bool(self.pids and self.wrapper) and (wrapper is None or wrapper.state == "Z")

    def kill(self) -> None:
        """End it, though it may be stopped, and so may what wraps it."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.wrapper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.wrapper, signal.SIGCONT)

    def killed(self) -> messages.Report:
        """Make the report of its end by SIGKILL, which its `exec` did not live to send."""
        return self.report("exited", code=-signal.SIGKILL, at=time.monotonic())

    def report(self, event: str, **values: messages.Value) -> messages.Report:
        """Make a report about the rank, which does not send it itself."""
        return messages.Report({"rank": self.rank, "world": self.world, "event": event, **values})


@functools.lru_cache(maxsize=16)
def library_flavour(path: str) -> str:
    """Return the flavour of the libmpi at `path`; "" when it is unknown."""
    from shanty.runtime.mpi.detect import flavour_of_library

    library = flavour_of_library(path)
    return library.flavour if library else ""
