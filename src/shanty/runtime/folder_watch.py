"""Notices that a run's folder was removed while the run is on."""

from __future__ import annotations

import contextlib
import os
from typing import Optional

from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure


class RunFolder:
    """The folder of a run on this host, as it is now."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.was_lost = False  # it was found to be gone: there is nothing to try again with
        self._written = [path for path in (run.plan, run.agents) if path.exists()]

    @property
    def is_lost(self) -> bool:
        """True when what is written only before the ranks start is gone; the rest comes again."""
        for path in self._written:
            try:
                os.stat(path)
                return False
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:  # a network file system that is away for a moment
                return False
        return bool(self._written)

    def watch_from_the_start(self) -> None:
        """Count the folder as lost also where it was removed before this object was made."""
        self._written = [self._run.plan, self._run.job]

    def failure(self) -> Optional[Failure]:
        """Returns why the run has to end without its folder, and makes another for its status."""
        if not self.is_lost:
            return None
        self.was_lost = True
        with contextlib.suppress(OSError):
            self._run.path.parent.mkdir(parents=True, exist_ok=True)
            self._run.path.mkdir(mode=0o700, exist_ok=True)
            self._run.asks.mkdir(exist_ok=True)
        return removed(os.uname().nodename, str(self._run.path))


def removed(host: str, folder: str) -> Failure:
    """Returns the failure of a run whose folder on a host was removed."""
    return Failure(
        f"the run's folder on host {host} was removed during the run: {folder}",
        "what was saved in it before is lost: artifacts, metrics, results",
        "find out what removed it (a clean-up of files?) and run again",
        host=host,
    )
