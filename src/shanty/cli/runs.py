"""Lists, stops and deletes runs, and prints their output."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from shanty.cli.context import Context, context, note
from shanty.cli.options import completed, json_option, run_argument
from shanty.cli.table import ago, print_table, shorten
from shanty.runtime.errors import LostError, ShantyError, UsageError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Raw, State

if TYPE_CHECKING:
    from shanty.launch.follow import Excerpt

_RECENT = 20  # runs that `ps` lists unless asked for all
_PATIENCE = 15.0  # seconds beyond the grace in which a stopped run must have ended


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, not only the newest 20.")
@click.option("--active", is_flag=True, help="Only runs that are on.")
@click.option(
    "--state", multiple=True, shell_complete=completed("states"),
    help="Only runs in that state (repeatable).",
)  # fmt: skip
@click.option("--name", shell_complete=completed("names"), help="Only runs of that name.")
@click.option(
    "--tag", multiple=True, shell_complete=completed("tags"),
    help="Only runs with that tag (repeatable).",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Only the ids.")
@json_option
def ps(
    everything: bool,
    active: bool,
    state: tuple[str, ...],
    name: str | None,
    tag: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """List the runs, the newest last.

    \b
    Examples:
      shanty ps
      shanty ps --active
      shanty ps --state failed --tag digits --json
    """
    for wanted in state:
        if wanted not in {known.value for known in State}:
            raise UsageError(
                f"there is no state {wanted!r}",
                fix="known are " + ", ".join(s.value for s in State),
            )
    entries = [
        entry
        for entry in context().runs.entries()
        if (not active or not entry.status.state.final)
        and (not state or entry.status.state.value in state)
        and (name is None or entry.name == name)
        and set(tag) <= set(entry.tags)
    ]
    if not everything:
        entries = entries[-_RECENT:]
    if as_json:
        for entry in entries:
            print(json.dumps(entry.to_json()))
    elif quiet:
        print(*(entry.id for entry in entries), sep="\n", end="\n" if entries else "")
    elif entries:
        now = time.time()
        print_table(
            ("RUN", "NAME", "STATE", "RANKS", "STARTED", "TOOK", "COMMAND"),
            [
                (
                    entry.id,
                    entry.name or "",
                    entry.status.state.value
                    + (" (stalled)" if entry.status.stalled else "")
                    + (" (alone)" if entry.status.alone else "")
                    + (f" ({entry.status.exit_code})" if entry.status.exit_code else ""),
                    str(entry.status.ranks or ""),
                    ago(max(0.0, now - entry.status.created)) + " ago",
                    ago(entry.status.took()),
                    shorten(" ".join(entry.command), 48),
                )
                for entry in entries
            ],
        )
        for entry in entries:
            if entry.status.state is State.PENDING and entry.status.reason:
                print(f"{entry.id} waits: {entry.status.reason}")
    else:
        print("no runs" if everything or not active else "no run is on")


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("-r", "--rank", type=int, multiple=True, help="Only that rank (repeatable).")
@click.option("--launcher", is_flag=True, help="Only what the launcher itself wrote.")
@click.option("--agent", is_flag=True, help="Only the log of shanty's own agents.")
@json_option
def logs(
    run: str, follow: bool, rank: tuple[int, ...], launcher: bool, agent: bool, as_json: bool
) -> None:
    """Print the output of a run.

    A single rank's comes without its label.

    \b
    Examples:
      shanty logs -f night
      shanty logs --rank 1 night > rank-1.txt
    """
    here = context()
    found = here.runs.find(run)
    if agent:
        if found.agent_log.exists():
            sys.stdout.write(found.agent_log.read_text(errors="replace"))
        return
    print_logs(here, found, follow=follow, rank=rank, launcher=launcher, as_json=as_json)


def print_logs(
    here: Context,
    found: RunDir,
    *,
    follow: bool,
    rank: tuple[int, ...] = (),
    launcher: bool = False,
    as_json: bool = False,
    excerpt: Excerpt | None = None,
) -> None:
    """Print the output of a run, or an `excerpt` of it; UsageError for ranks without any."""
    from shanty.launch.follow import Excerpt, Follower, JsonPrinter, Printer, standard_printer
    from shanty.launch.index import read_job
    from shanty.runtime.agent.control import read_status

    excerpt = excerpt or Excerpt()
    known = {each for n in found.attempts() for each in RunDir(found.path, n).rank_logs()}
    unknown = set(rank) - known
    if unknown and not follow:
        raise UsageError(
            f"run {found.id} has no output of rank {min(unknown)}",
            fix="it has that of " + (", ".join(map(str, sorted(known))) or "no rank"),
        )
    wanted = () if launcher else rank or None
    job = read_job(found)
    raw = job is not None and isinstance(job.command, Raw)
    follower = Follower(found, wanted, launcher=launcher or (raw and not rank))
    # By the ranks that are meant to be: those that have written yet may be fewer.
    ranks = len(rank) or read_status(found).ranks or len(known)
    labels = not launcher and ranks != 1
    printer: Printer | JsonPrinter = (
        JsonPrinter(sys.stdout.buffer) if as_json else standard_printer(labels=labels)
    )
    try:
        while True:
            final = here.runs.status(found).state.final
            while lines := follower.read():
                printer.show(excerpt.of(lines))
                if excerpt.over:
                    break
            if final or not follow or excerpt.over:
                break
            time.sleep(0.05)
        printer.finish()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        printer.break_line()


@click.command()
@click.argument("run", metavar="[RUN]...", nargs=-1, shell_complete=completed("runs"))
@click.option("--all", "everything", is_flag=True, help="Every run that is on.")
@click.option("--kill", is_flag=True, help="SIGKILL at once.")
def stop(run: tuple[str, ...], everything: bool, kill: bool) -> None:
    """Stop runs: SIGTERM to the ranks, then SIGKILL.

    A run that has ended is left as it is.

    \b
    Examples:
      shanty stop night
      shanty stop --all
    """
    here = context()
    if not run and not everything:
        raise UsageError("which run?", fix="name it, or say `last`, or --all")
    found = [here.runs.find(reference) for reference in run]
    if everything:
        found = [
            here.runs.directory(entry.id)
            for entry in here.runs.entries()
            if not entry.status.state.final
        ]
    grace = 0.0 if kill else here.settings.stop_grace
    errors = []
    for directory in found:
        try:
            _stop(here, directory, grace)
        except ShantyError as error:  # the others are stopped all the same
            errors.append(error)
            if len(found) > 1:
                note(f"run {directory.id}: {error.what}")
    if errors:
        raise errors[0]


def _stop(here: Context, run: RunDir, grace: float) -> None:
    if here.runs.status(run).ended is not None:
        note(f"run {run.id} has ended already")
        return
    try:
        here.targets.cancel(run, grace)
    except ShantyError as error:
        if run.site.exists():
            forget = f"if its hosts are no more: shanty rm --force {run.id}"
            error.fix = f"{error.fix}; or, {forget}" if error.fix else forget
        raise
    deadline = time.monotonic() + grace + _PATIENCE
    while not (status := here.runs.status(run)).state.final:
        if time.monotonic() > deadline:
            raise LostError(f"run {run.id} does not end", fix="try again with --kill")
        time.sleep(0.02)
    note(f"run {run.id}: {status.state.value}")


@click.command()
@click.argument("run", metavar="RUN...", nargs=-1, required=True, shell_complete=completed("runs"))
@click.option("-f", "--force", is_flag=True, help="Also runs that are on, or out of reach.")
def rm(run: tuple[str, ...], force: bool) -> None:
    """Delete ended runs, their logs and their artifacts.

    With --force a run is stopped first. Where its hosts cannot be reached, it may go on there.

    \b
    Examples:
      shanty rm night
      shanty rm --force last
    """
    here = context()
    found = {directory.id: directory for directory in map(here.runs.find, run)}
    for name, directory in found.items():
        if force and not here.runs.status(directory).state.final:
            try:
                _stop(here, directory, here.settings.stop_grace)
            except ShantyError as error:
                note(f"run {name}: {error.what}")
        here.runs.remove(directory, force=force)
        note(f"run {name} is deleted")


@click.command()
@click.option("--keep", type=int, help="How many runs to keep [setting keep_runs].")
def prune(keep: int | None) -> None:
    """Delete the oldest ended runs beyond a number.

    Runs that are on stay.

    \b
    Example:
      shanty prune --keep 20
    """
    here = context()
    if keep is not None and keep < 0:
        raise UsageError(f"--keep must be 0 or more, not {keep}")
    removed = here.runs.prune(here.settings.keep_runs if keep is None else keep)
    note(f"{len(removed)} run{'' if len(removed) == 1 else 's'} deleted")
