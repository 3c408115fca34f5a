"""Prints what the doctor finds, and says why a run could not be started."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from shanty.client.context import Context
from shanty.runtime.errors import LaunchError, ShantyError, WorldError
from shanty.runtime.spec import JobSpec, State, Status

if TYPE_CHECKING:
    from shanty.launch.doctor.check import Report
    from shanty.launch.finding import Finding
    from shanty.runtime.site import Host

_LIMIT_AFTER_FAILURE = 9.0  # seconds: somebody waits who has seen the error already
_LAUNCH_FAILED = (LaunchError.exit_code, WorldError.exit_code)


def examined(
    here: Context, job: JobSpec, *, holds_ranks: bool, limit: float | None = None
) -> Report:
    """Examine the hosts of a job within `limit` seconds, and tell how far it is."""
    from shanty.launch.doctor.check import LIMIT, examine

    say = here.progress if sys.stderr.isatty() else lambda _text: None
    hosts, limit = hosts_of(here, job), limit or LIMIT
    return examine(job, hosts, here.home, here.environ, say, holds_ranks=holds_ranks, limit=limit)


def hosts_of(here: Context, job: JobSpec) -> tuple[Host, ...]:
    """Return the hosts that a job names."""
    from shanty.launch.network.survey import chosen

    return chosen(job.on, job.hostfile, here.home) if job.on or job.hostfile else ()


def lines(finding: Finding, out: TextIO) -> list[str]:
    """Return a finding as it is printed to `out`."""
    colour = {"error": 31, "warning": 33}.get(finding.level.value, 36)
    level = coloured(finding.level.value, colour, out)
    found = [f"  {level} [{finding.code}] {finding.what}"]
    if finding.evidence:
        found.append(f"    seen: {finding.evidence}")
    if finding.fix:
        found.append(f"    fix:  {finding.fix}" + (" (--fix does it)" if finding.fixable else ""))
    if finding.command:
        found.append(f"      $ {finding.command}")
    return found


def coloured(text: str, code: int, out: TextIO) -> str:
    """Return a text in a colour where `out` is a terminal."""
    return f"\033[{code}m{text}\033[0m" if out.isatty() else text


def is_a_launch(status: Status) -> bool:
    """Return true for a run that failed by no rank's own doing."""
    failure = status.failure
    ours = status.exit_code in _LAUNCH_FAILED and status.state in (State.FAILED, State.LOST)
    return ours and (failure is None or failure.rank is None)


def findings(here: Context, job: JobSpec) -> list[Finding]:
    """Examine the hosts of a job; all that is more than a note, or nothing where that fails."""
    from shanty.launch.finding import Level

    away = bool(job.on or job.hostfile)
    try:
        report = examined(here, job, holds_ranks=not away, limit=_LIMIT_AFTER_FAILURE)
    except ShantyError:
        return []  # what keeps the doctor out has been said by the error before
    return [each for each in report.findings if each.level is not Level.NOTE]


def explain(here: Context, job: JobSpec, said: str) -> None:
    """Print what the doctor finds, but what `said`, the failure in words, has named already."""
    here.progress("")
    if "[shell-broken]" in said:
        return  # another login would hang as well
    found = [f for f in findings(here, job) if f"[{f.code}]" not in said or f.host not in said]
    if found:
        print("shanty: doctor finds:", file=sys.stderr)
    for each in found:
        shown = replace(each, what=f"{each.host}: {each.what}" if each.host else each.what)
        print(*lines(shown, sys.stderr), sep="\n", file=sys.stderr)
