"""`shanty experiments`: Gradient's command, with its flags, for runs on one's own machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from shanty.cli import gradient_flags
from shanty.cli.context import Context, context, note
from shanty.cli.experiment_id import api_key_option, of_experiment, reference_of
from shanty.cli.experiment_metrics import metrics
from shanty.cli.gradient_flags import MULTINODE, OWN, SINGLENODE
from shanty.cli.options import completed, json_option
from shanty.cli.options_file import FileCommand, options_file
from shanty.cli.platform_flags import PlatformCommand, flag_options
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec

_STARTED = "created"  # a file of a run: it began when it was created, and nobody has started it
_LISTED = 20  # experiments on a page of `list`, as on Gradient


class Experiments(click.Group):
    """Knows the older names of its verbs, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command."""
        return super().get_command(ctx, {"createAndStart": "run"}.get(cmd_name, cmd_name))


@click.group(cls=Experiments)
def experiments() -> None:
    """Run experiments, by Gradient's command line."""


@experiments.group()
def create() -> None:
    """Create an experiment; it begins as soon as its machines are free."""


@experiments.group()
def run() -> None:
    """Create an experiment, and show its output to its end."""


# ---------------------------------------------------------------------------- making experiments


_no_logs = click.option("--no-logs", is_flag=True, help="Come back at once.")


@create.command("multinode", cls=PlatformCommand, flags=MULTINODE, own=OWN)
@flag_options(MULTINODE, OWN)
@options_file
def create_multinode(dry_run: bool, **values: Any) -> None:
    """Create an MPI experiment on a master and workers.

    It begins as soon as its machines are free. The line runs on the master, and mpirun in it takes
    the ranks to all machines, by /generated/hostfile or any other way.

    \b
    Example:
      shanty experiments create multinode --workerMachineType a --workerCount 2 --masterCommand ./x
    """
    from shanty.cli import gradient

    here = context()
    begin(here, gradient.multinode(values, here), dry_run=dry_run, logs=False)


@create.command("singlenode", cls=PlatformCommand, flags=SINGLENODE, own=OWN)
@flag_options(SINGLENODE, OWN)
@options_file
def create_singlenode(dry_run: bool, **values: Any) -> None:
    """Create an experiment on one machine.

    It begins as soon as a machine is free.

    \b
    Example:
      shanty experiments create singlenode --machineType a --command "python x.py" --workspace .
    """
    from shanty.cli import gradient

    here = context()
    begin(here, gradient.singlenode(values, here), dry_run=dry_run, logs=False)


@run.command("multinode", cls=PlatformCommand, flags=MULTINODE, own=OWN)
@_no_logs
@flag_options(MULTINODE, OWN)
@options_file
def run_multinode(no_logs: bool, dry_run: bool, **values: Any) -> None:
    """Create one of MPI, and show its output to its end.

    \b
    Example:
      shanty experiments run multinode --workerMachineType a --workerCount 2 --masterCommand ./x
    """
    from shanty.cli import gradient

    here = context()
    begin(here, gradient.multinode(values, here), dry_run=dry_run, logs=not no_logs, runs=True)


@run.command("singlenode", cls=PlatformCommand, flags=SINGLENODE, own=OWN)
@_no_logs
@flag_options(SINGLENODE, OWN)
@options_file
def run_singlenode(no_logs: bool, dry_run: bool, **values: Any) -> None:
    """Create one on one machine, and show its output to its end.

    \b
    Example:
      shanty experiments run singlenode --machineType a --command "python x.py" --workspace .
    """
    from shanty.cli import gradient

    here = context()
    begin(here, gradient.singlenode(values, here), dry_run=dry_run, logs=not no_logs, runs=True)


def begin(
    here: Context,
    job: JobSpec,
    *,
    dry_run: bool,
    logs: bool,
    runs: bool = False,
    what: str = "experiment",
) -> None:
    """Start the job and say its id; ends the process, with the run's exit code if logs are shown.

    What was only created is marked, so that the first `start` of it does not run it twice.
    """
    from shanty.cli.start import start as submit
    from shanty.cli.terminal import Show

    def submitted(run: RunDir) -> None:
        print(f"New {what} created {'and started ' * runs}with ID: {run.id}", flush=True)
        if not runs:
            (run.path / _STARTED).touch()
        if not logs:
            note(f"it begins by itself; see `shanty logs -f {run.id}` and `shanty ps`")

    sys.exit(submit(here, job, Show(), dry_run=dry_run, detach=not logs, submitted=submitted))


# ------------------------------------------------------------------------- those that there are


@experiments.command("list", cls=FileCommand)
@click.option(
    "--projectId", "-p", "projects", multiple=True, metavar="ID",
    help="Only of that project (repeatable: of any of them).",
)  # fmt: skip
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", shell_complete=completed("tags"),
    help="Only with that tag (repeatable: with all of them).",
)  # fmt: skip
@click.option(
    "--limit", "-l", type=click.IntRange(1), default=_LISTED, metavar="N",
    help=f"How many [{_LISTED}].",
)  # fmt: skip
@click.option(
    "--offset", "-o", type=click.IntRange(0), default=0, metavar="N",
    help="How many newer ones to pass over [0].",
)  # fmt: skip
@api_key_option
@options_file
@json_option
def list_all(
    projects: tuple[str, ...], tags: tuple[str, ...], limit: int, offset: int, as_json: bool
) -> None:
    """List the experiments, the newest first.

    \b
    Examples:
      shanty experiments list
      shanty experiments list --tag night --limit 5
    """
    from shanty.cli.table import ago, print_table
    from shanty.launch.index import read_job

    here = context()
    wanted = {f"project:{each}" for each in projects}
    found = [
        entry
        for entry in reversed(here.runs.entries())
        if set(tags) <= set(entry.tags) and (not wanted or wanted & set(entry.tags))
    ]
    shown = found[offset : offset + limit]
    if as_json:
        for entry in shown:
            print(json.dumps(entry.to_json()))
        return
    rows, now = [], time.time()
    for entry in shown:
        job = read_job(here.runs.directory(entry.id))
        machines = ",".join(f"{name}:{count}" for name, count in job.machines) if job else ""
        when = ago(max(0.0, now - entry.status.created)) + " ago"
        state, label = entry.status.state.value, entry.name or ""
        rows.append((label, entry.id, state, machines, ",".join(entry.tags), when))
    if rows:
        print_table(("NAME", "ID", "STATUS", "MACHINES", "TAGS", "CREATED"), rows)
    if len(found) > offset + limit:
        note(f"{len(found) - offset - limit} more: --offset {offset + limit}")
    elif not rows:
        print("no experiments")


@experiments.command(cls=FileCommand)
@of_experiment
@json_option
@click.pass_context
def details(ctx: click.Context, run_id: str | None, reference: str | None, as_json: bool) -> None:
    """Show one experiment: how it stands, where its files are.

    \b
    Example:
      shanty experiments details --id last
    """
    from shanty.cli.show import show

    ctx.invoke(show, run=reference_of(run_id, reference), as_json=as_json)


@experiments.command(cls=FileCommand)
@of_experiment
@click.option("--logs", "logs", is_flag=True, help="Show its output to its end.")
@click.pass_context
def start(ctx: click.Context, run_id: str | None, reference: str | None, logs: bool) -> None:
    """Start an experiment that has ended again, as a new one.

    One that was just created has begun by itself.

    \b
    Example:
      shanty experiments start --id night
    """
    restart(ctx, reference_of(run_id, reference), logs=logs)


def restart(ctx: click.Context, reference: str, *, logs: bool, what: str = "experiment") -> None:
    """Start a run that has ended again; of one that has not been started yet, say that it is on."""
    from shanty.launch.index import read_job
    from shanty.runtime.spec import State

    here = context()
    found = here.runs.find(reference)
    status = here.runs.status(found)
    marker = found.path / _STARTED
    fresh = marker.exists()
    marker.unlink(missing_ok=True)
    if fresh or not status.state.final:
        stands = "has ended" if status.state.final else "is on"
        if status.state is State.PENDING:
            stands = f"waits: {status.reason or 'for its machines'}"
        by_itself = "began by itself when it was created, and " if fresh else ""
        note(f"{what} {found.id} {by_itself}{stands}")
        if logs:
            from shanty.cli.runs import logs as show_logs

            ctx.invoke(show_logs, run=found.id, follow=True, as_json=False)
        return
    job = read_job(found)
    if job is None:
        raise NotFoundError(f"{found.job} is missing or damaged, so its job is not known")
    begin(here, job, dry_run=False, logs=logs, runs=True, what=what)


@experiments.command(cls=FileCommand)
@of_experiment
@click.pass_context
def stop(ctx: click.Context, run_id: str | None, reference: str | None) -> None:
    """Stop an experiment: SIGTERM to the ranks, then SIGKILL.

    \b
    Example:
      shanty experiments stop --id night
    """
    from shanty.cli.runs import stop as stop_run

    ctx.invoke(stop_run, run=(reference_of(run_id, reference),), everything=False, kill=False)


@experiments.command(cls=FileCommand)
@of_experiment
@click.pass_context
def delete(ctx: click.Context, run_id: str | None, reference: str | None) -> None:
    """Delete an experiment that has ended, its logs and its artifacts.

    \b
    Example:
      shanty experiments delete --id night
    """
    from shanty.cli.runs import rm

    ctx.invoke(rm, run=(reference_of(run_id, reference),), force=False)


@experiments.command(cls=FileCommand)
@of_experiment
@click.option(
    "--line", type=click.IntRange(0), default=0, metavar="N", help="The first line to show [1]."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="How many lines [10000, all with --follow].",
)
@click.option(
    "--follow", is_flag=False, flag_value="true", default="false", metavar="[true|false]",
    help="Go on until it has ended.",
)  # fmt: skip
def logs(
    run_id: str | None, reference: str | None, line: int, limit: int | None, follow: str
) -> None:
    """Print the output of an experiment.

    \b
    Examples:
      shanty experiments logs --id night --follow
      shanty experiments logs --id night --line 100 --limit 20
    """
    from shanty.cli.runs import print_logs
    from shanty.launch.follow import Excerpt

    goes_on = _truth(follow)
    if goes_on is None:
        reference, goes_on = reference or follow, True  # `--follow ID`
    most = limit if limit is not None else None if goes_on else 10_000
    here = context()
    found = here.runs.find(reference_of(run_id, reference))
    print_logs(here, found, follow=goes_on, excerpt=Excerpt(max(0, line - 1), most))


def _truth(word: str) -> bool | None:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return known.get(word.lower())


# ------------------------------------------------------------------------------------- tags


@experiments.group()
def tags() -> None:
    """Put tags on experiments, and take them off."""


def _tags(values: Mapping[str, Any]) -> tuple[str, ...]:
    from shanty.cli.platform_jobs import tags_of

    found = tags_of(values["tags"], values["tags_comma"])
    if not found:
        raise UsageError("which tags?", fix="name them: --tag TAG, or --tags TAG,TAG")
    return found


def _tag_options(command: Callable[..., Any]) -> Any:
    flags = [each for each in gradient_flags.SINGLENODE if each.param in ("tags", "tags_comma")]
    return flag_options(flags)(of_experiment(command))


@tags.command(cls=FileCommand)
@_tag_options
def add(run_id: str | None, reference: str | None, **values: Any) -> None:
    """Put tags on an experiment.

    \b
    Example:
      shanty experiments tags add --id night --tag good
    """
    _retag(run_id, reference, add=_tags(values))


@tags.command(cls=FileCommand)
@_tag_options
def remove(run_id: str | None, reference: str | None, **values: Any) -> None:
    """Take tags off an experiment.

    \b
    Example:
      shanty experiments tags remove --id night --tags good,better
    """
    _retag(run_id, reference, remove=_tags(values))


def _retag(run_id: str | None, reference: str | None, **change: tuple[str, ...]) -> None:
    from shanty.launch.tags import retag

    here = context()
    found = here.runs.find(reference_of(run_id, reference))
    left = retag(here.runs, found, **change)
    note(f"experiment {found.id} has the tags {', '.join(left)}" if left else
         f"experiment {found.id} has no tags")  # fmt: skip


experiments.add_command(metrics)
