"""Reads the status of a run, and writes the last one of a run that has no controller."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import Optional

from shanty.runtime.errors import LostError, ShantyError
from shanty.runtime.folder_watch import removed
from shanty.runtime.rundir import RunDir, append_line, read_json, read_lines, write_json
from shanty.runtime.spec import Failure, State, Status


def conclude(run: RunDir, state: State, failure: Optional[Failure], code: int) -> Status:
    """Write the last status of a run that has no controller to do it, unless there is one.

    Where the run's folder was removed, that is the cause.
    """
    status = read_status(run)
    if status.state.final:
        return status
    if failure is not None and not (run.job.exists() or run.plan.exists()):
        failure = removed(os.uname().nodename, str(run.path))
    status = replace(status, state=state, ended=time.time(), exit_code=code, failure=failure)
    with contextlib.suppress(OSError):
        write_json(run.status, status.to_json())
        append_line(run.events, {"time": time.time(), "event": "state", "status": status.to_json()})
    return status


def conclude_error(run: RunDir, error: ShantyError) -> Status:
    """Write the last status of a run that ended with `error`: lost, or failed."""
    state = State.LOST if isinstance(error, LostError) else State.FAILED
    return conclude(run, state, Failure(error.what, error.why, error.fix), error.exit_code)


def write_reason(run: RunDir, reason: str) -> None:
    """Write why a run has not begun yet, unless it has."""
    status = read_status(run)
    if status.state is State.PENDING and status.reason != reason:
        write_json(run.status, replace(status, reason=reason).to_json())


def read_status(run: RunDir) -> Status:
    """The status as written; a damaged file is made up for from the events."""
    values = read_json(run.status)
    with contextlib.suppress(ValueError, TypeError):
        if values is not None:
            return Status.from_json(values)
    for event in reversed(read_lines(run.events)):
        with contextlib.suppress(ValueError, TypeError):
            if event.get("event") == "state":
                return Status.from_json(event.get("status", {}))
    with contextlib.suppress(OSError):
        return Status(state=State.PENDING, created=run.path.stat().st_mtime)
    return Status()
