"""Lists, stops and deletes runs, and prints their output and stacks."""

from __future__ import annotations

import json
import sys
import time

import click

from shanty.client.context import Context, context, note
from shanty.client.terminal.options import completed, json_option, run_argument
from shanty.client.terminal.table import ago, print_table, shorten
from shanty.launch.stack_text import grouped, label
from shanty.runtime import site
from shanty.runtime.errors import LostError, ShantyError, UsageError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import State, Status

_RECENT = 20  # runs that `ps` lists unless asked for all
_PATIENCE = 15.0  # seconds beyond the grace in which a stopped run must have ended


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, not only the newest 20.")
@click.option("--active", is_flag=True, help="Only active runs.")
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
                f"unknown state {wanted!r}",
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
                    _ranks(entry.status),
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
        print("no runs" if everything or not active else "no active runs")


def _ranks(status: Status) -> str:
    """Write how many ranks there are: "3 of 4" where some were lost, "4 +1" with a spare."""
    ranks = f"{status.up} of {status.ranks}" if status.lost else str(status.ranks or "")
    return f"{ranks} +{status.spares}" if status.spares and not status.state.final else ranks


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
    from shanty.client.terminal.logs import print_logs

    print_logs(here, found, follow=follow, rank=rank, launcher=launcher, as_json=as_json)


@click.command()
@run_argument
@click.option("--threads", is_flag=True, help="All threads, not only the main one.")
@json_option
def stacks(run: str, threads: bool, as_json: bool) -> None:
    """Show where every rank stands: its stack, and its MPI call.

    The innermost call comes first, and of equal stacks those of the fewest ranks.

    \b
    Examples:
      shanty stacks
      shanty stacks --threads night
    """
    here = context()
    found = here.runs.find(run)
    reply = here.targets.stacks(found)
    if not reply.ok:
        raise UsageError(f"run {found.id}: {reply.error}", fix="only an active run has stacks")
    if as_json:
        print(json.dumps(reply.stacks))
        return
    if not reply.stacks:
        note("no rank has started yet")
    for ranks, text in grouped(reply.stacks, all_threads=threads):
        print(f"{label(ranks)}:\n{text}\n")


@click.command()
@click.argument("run", metavar="[RUN]...", nargs=-1, shell_complete=completed("runs"))
@click.option("--all", "everything", is_flag=True, help="Every active run.")
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
        raise UsageError("no run is named", fix="name a run, or `last`, or give --all")
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


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completed("runs"))
@click.argument("name", metavar="SIGNAL", default="USR1")
def signal(run: str, name: str) -> None:
    """Send a signal to the ranks that have a handler for it.

    A rank without one would end, so it is left alone.

    \b
    Examples:
      shanty signal night
      shanty signal night USR2
    """
    from shanty.client.signals import passed_on, signal_of

    here = context()
    text, reached = passed_on(here.targets, here.runs.find(run), signal_of(name))
    note(text)
    sys.exit(0 if reached else 1)


def _stop(here: Context, run: RunDir, grace: float) -> None:
    if here.runs.status(run).ended is not None:
        note(f"run {run.id} has ended already")
        return
    try:
        here.targets.cancel(run, grace)
    except ShantyError as error:
        if site.exists(run.path):
            forget = f"if its hosts are gone for good: shanty rm --force {run.id}"
            error.fix = f"{error.fix}; or, {forget}" if error.fix else forget
        raise
    deadline = time.monotonic() + grace + _PATIENCE
    while not (status := here.runs.status(run)).state.final:
        if time.monotonic() > deadline:
            raise LostError(f"run {run.id} has not ended", fix="try again with --kill")
        time.sleep(0.02)
    note(f"run {run.id}: {status.state.value}")


@click.command()
@click.argument("run", metavar="RUN...", nargs=-1, required=True, shell_complete=completed("runs"))
@click.option(
    "-f", "--force", is_flag=True, help="Also active runs, and runs whose hosts are out of reach."
)
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

    Active runs stay.

    \b
    Example:
      shanty prune --keep 20
    """
    here = context()
    if keep is not None and keep < 0:
        raise UsageError(f"--keep must be 0 or more, not {keep}")
    removed = here.runs.prune(here.settings.keep_runs if keep is None else keep)
    note(f"{len(removed)} run{'' if len(removed) == 1 else 's'} deleted")
