"""`shanty create job`: Clusterone's command, with its flags; and the words that go with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from shanty.cli.clusterone_flags import DISTRIBUTED, OWN, SINGLE
from shanty.cli.context import context
from shanty.cli.options import completed, json_option
from shanty.cli.platform_flags import PlatformCommand, flag_options
from shanty.runtime.errors import UsageError

_EVENTS = 20  # that `get events` shows


@click.group()
def create() -> None:
    """Create jobs, by Clusterone's command line."""


@create.group()
def job() -> None:
    """Create a job; it begins as soon as its machines are free."""


_ANY = {"ignore_unknown_options": True}  # they are the module's
_words = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[MODULE ARGS]…")


@job.command("distributed", cls=PlatformCommand, flags=DISTRIBUTED, own=OWN, context_settings=_ANY)
@flag_options(DISTRIBUTED, OWN)
@_words
def create_distributed(dry_run: bool, words: tuple[str, ...], **values: Any) -> None:
    """Create a job of workers, and a master beside them.

    With --worker-replicas 2 there are three machines, as for `mpirun -np 3`.

    \b
    Example:
      shanty create job distributed --worker-type a --command "mpirun -np 3 python main.py"
    """
    from shanty.cli import clusterone_jobs
    from shanty.cli.experiments import begin

    here = context()
    made = clusterone_jobs.distributed(values, words, here)
    begin(here, made, dry_run=dry_run, logs=False, what="job")


@job.command("single", cls=PlatformCommand, flags=SINGLE, own=OWN, context_settings=_ANY)
@flag_options(SINGLE, OWN)
@_words
def create_single(dry_run: bool, words: tuple[str, ...], **values: Any) -> None:
    """Create a job of one machine.

    \b
    Example:
      shanty create job single --project ann/digits --instance-type big --command "python main.py"
    """
    from shanty.cli import clusterone_jobs
    from shanty.cli.experiments import begin

    here = context()
    made = clusterone_jobs.single(values, words, here)
    begin(here, made, dry_run=dry_run, logs=False, what="job")


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
        raise UsageError("which job?", fix="name it, or say last")
    return found.rpartition("/")[2]  # of USER/PROJECT/NAME


@click.group(hidden=True)
def start() -> None:
    """Start a job that has ended again."""


@start.command("job")
@_of_job
@click.pass_context
def start_job(ctx: click.Context, /, **which: str | None) -> None:
    """Start a job that has ended again, as a new run; one that was just created has begun.

    \b
    Example:
      shanty start job digits/first-job
    """
    from shanty.cli.experiments import restart

    restart(ctx, _reference(**which), logs=False, what="job")


@click.group(hidden=True)
def stop() -> None:
    """Stop a job."""


@stop.command("job")
@_of_job
@click.pass_context
def stop_job(ctx: click.Context, /, **which: str | None) -> None:
    """Stop a job.

    \b
    Example:
      shanty stop job digits/first-job
    """
    from shanty.cli.runs import stop as stop_run

    ctx.invoke(stop_run, run=(_reference(**which),), everything=False, kill=False)


@click.group(hidden=True)
def rm() -> None:
    """Delete a job."""


@rm.command("job")
@_of_job
@click.pass_context
def rm_job(ctx: click.Context, /, **which: str | None) -> None:
    """Delete a job that has ended.

    \b
    Example:
      shanty rm job digits/first-job
    """
    from shanty.cli.runs import rm as rm_run

    ctx.invoke(rm_run, run=(_reference(**which),), force=False)


@click.group(hidden=True)
def get() -> None:
    """Show jobs."""


@get.command("jobs")
@click.option("--owner", hidden=True, expose_value=False)
@json_option
@click.pass_context
def get_jobs(ctx: click.Context, as_json: bool) -> None:
    """List the jobs, the newest first.

    \b
    Example:
      shanty get jobs
    """
    from shanty.cli.experiments import list_all

    ctx.invoke(list_all, as_json=as_json)


@get.command("job")
@_of_job
@json_option
@click.pass_context
def get_job(ctx: click.Context, /, as_json: bool, **which: str | None) -> None:
    """Show one job.

    \b
    Example:
      shanty get job digits/first-job
    """
    from shanty.cli.show import show

    ctx.invoke(show, run=_reference(**which), as_json=as_json)


@get.command("events")
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


ALSO = {"start": start, "stop": stop, "rm": rm, "get": get}
