"""The verbs of platforms: what starts a job, and what shanty has under another name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from shanty.client.context import Context, context, note
from shanty.client.terminal.options import json_option
from shanty.integrations.platforms.flags import Flag, PlatformCommand, flag_options
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, State

_CREATED = "created"  # a file of a run: it began when it was created, and nobody has started it


def add_alias(
    group: click.Group,
    name: str,
    line: str,
    text: str,
    *,
    which: Callable[[Any], Any],
    reference_of: Callable[..., str],
    cls: type[click.Command] = click.Command,
) -> None:
    """Give a group a verb that is a `line` of shanty's own for the run that `which` names.

    `which` declares the options that name a run, and `reference_of` makes one name of them.
    """

    def run(as_json: bool = False, **names: str | None) -> None:
        run_line(*line.split(), *["--json"] * as_json, "--", reference_of(**names))

    command = which(json_option(run) if line == "show" else run)
    group.command(name, cls=cls, help=text)(command)


def run_line(*words: str) -> None:
    """Run a line of shanty's own in place of the present one."""
    program = click.get_current_context().find_root().command
    program.main([*words], prog_name="shanty", standalone_mode=False)


def add_maker(
    group: click.Group,
    name: str,
    make_job: Callable[[dict[str, Any], Context], JobSpec],
    text: str,
    *,
    flags: Sequence[Flag],
    own: Sequence[str],
    more: Callable[[Any], Any],
    runs: bool = False,
    what: str = "experiment",
    **settings: Any,
) -> None:
    """Give a group a verb that makes a job of its flags and starts it.

    It has the platform's `flags`, `own` options of `shanty run` and what `more` declares. One that
    `runs` the job shows its output to the end.
    """

    def make(dry_run: bool, no_logs: bool = not runs, **values: Any) -> None:
        here = context()
        begin(here, make_job(values, here), dry_run=dry_run, logs=not no_logs, runs=runs, what=what)

    command = flag_options(flags, own)(more(make))
    if runs:
        command = click.option("--no-logs", is_flag=True, help="Come back at once.")(command)
    group.command(name, cls=PlatformCommand, flags=flags, own=own, help=text, **settings)(command)


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
    from shanty.client.terminal.display import Show
    from shanty.client.terminal.start import start

    def submitted(run: RunDir) -> None:
        print(f"New {what} created {'and started ' * runs}with ID: {run.id}", flush=True)
        if not runs:
            (run.path / _CREATED).touch()
        if not logs:
            note(f"it begins by itself; see `shanty logs -f {run.id}` and `shanty ps`")

    sys.exit(start(here, job, Show(), dry_run=dry_run, detach=not logs, submitted=submitted))


def restart(reference: str, *, logs: bool, what: str = "experiment") -> None:
    """Start a run that has ended again; a run that was only created has begun by itself."""
    from shanty.client.terminal.logs import print_logs

    here = context()
    found = here.runs.find(reference)
    status = here.runs.status(found)
    marker = found.path / _CREATED
    fresh = marker.exists()
    marker.unlink(missing_ok=True)
    if fresh or not status.state.final:
        stands = "has ended" if status.state.final else "is on"
        if status.state is State.PENDING:
            stands = f"waits: {status.reason or 'for its machines'}"
        by_itself = "began by itself when it was created, and " if fresh else ""
        note(f"{what} {found.id} {by_itself}{stands}")
        if logs:
            print_logs(here, found, follow=True)
        return
    begin(here, here.job_of(found), dry_run=False, logs=logs, runs=True, what=what)
