"""`shanty create job`: Clusterone's command, with its flags; and the words that go with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click

from shanty.client.context import context
from shanty.client.terminal.options import completed, json_option
from shanty.integrations.clusterone.flags import DISTRIBUTED, OWN, SINGLE
from shanty.integrations.platforms.verbs import add_alias, add_maker, restart, run_line
from shanty.runtime.errors import UsageError

_EVENTS = 20  # that `get events` shows


@click.group()
def create() -> None:
    """Create jobs, by Clusterone's command line."""


@create.group()
def job() -> None:
    """Create a job; it begins as soon as its machines are free."""


def _jobs() -> ModuleType:
    """Import what makes jobs: the other verbs do not need it."""
    from shanty.integrations.clusterone import job

    return job


_words = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[MODULE ARGS]…")
_of_jobs: dict[str, Any] = {
    "own": OWN,
    "more": _words,
    "what": "job",
    "context_settings": {"ignore_unknown_options": True},  # they are the module's
}
add_maker(
    job,
    "distributed",
    lambda *given: _jobs().distributed(*given),
    "Create a job of workers, and a master beside them.\n\n"
    "With --worker-replicas 2 there are three machines, as for `mpirun -np 3`.\n\n"
    "\b\nExample:\n  shanty create job distributed --worker-type a "
    '--command "mpirun -np 3 python main.py"',
    flags=DISTRIBUTED,
    **_of_jobs,
)
add_maker(
    job,
    "single",
    lambda *given: _jobs().single(*given),
    "Create a job of one machine.\n\n"
    "\b\nExample:\n  shanty create job single --project ann/digits --instance-type big "
    '--command "python main.py"',
    flags=SINGLE,
    **_of_jobs,
)


# ------------------------------------------------------- words besides, which no help shows


def _of_job(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the job that it is about: its name, its path on the platform, or its id."""
    command = click.option("--job-id", "-i", "job_id", shell_complete=completed("runs"))(command)
    command = click.option("--job-path", "-p", "job_path", shell_complete=completed("runs"))(
        command
    )
    return click.argument("reference", required=False, shell_complete=completed("runs"))(command)


def _reference(job_id: str | None, job_path: str | None, reference: str | None) -> str:
    found = job_id or job_path or reference
    if not found:
        raise UsageError("no job is named", fix="name it, or say last")
    return found.rpartition("/")[2]  # of USER/PROJECT/NAME


ALSO = {
    verb: click.Group(verb, hidden=True, help=text)
    for verb, text in (
        ("start", "Start a job that has ended again."),
        ("stop", "Stop a job."),
        ("rm", "Delete a job."),
        ("get", "Show jobs."),
    )
}


@ALSO["start"].command("job")
@_of_job
def start_job(**which: str | None) -> None:
    """Start a job that has ended again, as a new run; a job that was just created has begun.

    \b
    Example:
      shanty start job digits/first-job
    """
    restart(_reference(**which), logs=False, what="job")


for _verb, _line, _text in (
    ("stop", "stop", "Stop a job."),
    ("rm", "rm", "Delete a job that has ended."),
    ("get", "show", "Show one job."),
):
    add_alias(
        ALSO[_verb],
        "job",
        _line,
        f"{_text}\n\n\b\nExample:\n  shanty {_verb} job digits/first-job",
        which=_of_job,
        reference_of=_reference,
    )


@ALSO["get"].command("jobs")
@click.option("--owner", hidden=True, expose_value=False)
@json_option
def get_jobs(as_json: bool) -> None:
    """List the jobs, the newest first.

    \b
    Example:
      shanty get jobs
    """
    run_line("experiments", "list", *["--json"] * as_json)


@ALSO["get"].command("events")
@_of_job
@json_option
def get_events(as_json: bool, **which: str | None) -> None:
    """Print the last events of a job, by default of the newest.

    \b
    Example:
      shanty get events
    """
    from shanty.runtime.rundir import read_lines

    given = any(which.values())
    found = context().runs.find(_reference(**which) if given else "last")
    for each in read_lines(found.events)[-_EVENTS:]:
        if as_json:
            print(json.dumps(each))
            continue
        status, report = each.get("status") or {}, each.get("report") or {}
        what = str(each.get("event", "")).replace("-", " ")
        more = status.get("state", "")
        if "rank" in report:
            more = f"rank {report['rank']} on {report.get('host', '')}"
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(each.get("time", 0))))
        print(f"{clock}  {found.id}  {what}  {more}".rstrip())
    sys.stdout.flush()
