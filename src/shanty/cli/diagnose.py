"""What the doctor says of a run that could not begin, or was not to blame for its end."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from shanty.runtime.errors import LaunchError, ShantyError, WorldError
from shanty.runtime.spec import JobSpec, State, Status

if TYPE_CHECKING:
    from shanty.cli.context import Context
    from shanty.launch.finding import Finding

_LIMIT = 9.0  # seconds: somebody waits who has seen the error already
_LAUNCH = (LaunchError.exit_code, WorldError.exit_code)


def is_a_launch(status: Status) -> bool:
    """True for a run that failed by no rank's own doing."""
    failure = status.failure
    ours = status.exit_code in _LAUNCH and status.state in (State.FAILED, State.LOST)
    return ours and (failure is None or failure.rank is None)


def is_explained(error: ShantyError) -> bool:
    """True for an error that has come of the doctor's own checks."""
    from shanty.launch.finding import FoundError

    return isinstance(error, FoundError)


def findings(context: Context, job: JobSpec) -> list[Finding]:
    """All that is more than a note; nothing where the examination itself fails."""
    from shanty.cli.doctor import examined
    from shanty.launch.finding import Level

    away = bool(job.on or job.hostfile)
    try:
        report = examined(context, job, holds_ranks=not away, limit=_LIMIT)
    except ShantyError:
        return []  # what keeps the doctor out has been said by the error before
    return [each for each in report.findings if each.level is not Level.NOTE]


def explain(context: Context, job: JobSpec, said: str) -> None:
    """Print what the doctor finds, but what `said`, the failure in words, has named already."""
    context.preparing("")
    found = [each for each in findings(context, job) if not _is_in(each, said)]
    if not found:
        return
    from shanty.cli.doctor import lines

    print("shanty: doctor finds:", file=sys.stderr)
    for each in found:
        shown = replace(each, what=f"{each.host}: {each.what}" if each.host else each.what)
        print(*lines(shown, sys.stderr), sep="\n", file=sys.stderr)


def _is_in(finding: Finding, said: str) -> bool:
    return f"[{finding.code}]" in said and finding.host in said
