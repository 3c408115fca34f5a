"""`shanty stop`: end runs."""

from __future__ import annotations

import time

import click

from shanty.cli.context import context, note
from shanty.runtime.errors import LostError, UsageError

_PATIENCE = 15.0  # seconds beyond the grace in which a stopped run must have ended


@click.command()
@click.argument("run", metavar="[RUN]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every run that is on.")
@click.option("--kill", is_flag=True, help="SIGKILL at once.")
def stop(run: tuple[str, ...], everything: bool, kill: bool) -> None:
    """Stop runs: SIGTERM to the ranks, then SIGKILL. A run that has ended is left as it is."""
    from shanty.launch.targets.base import Handle, Stop

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
    for directory in found:
        if here.runs.status(directory).state.final:
            note(f"run {directory.id} has ended already")
            continue
        here.targets.ask(Handle(directory), Stop(grace))
        deadline = time.monotonic() + grace + _PATIENCE
        while not (status := here.runs.status(directory)).state.final:
            if time.monotonic() > deadline:
                raise LostError(f"run {directory.id} does not end", fix="try again with --kill")
            time.sleep(0.02)
        note(f"run {directory.id}: {status.state.value}")
