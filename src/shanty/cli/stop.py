"""`shanty stop`: end runs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from shanty.carry.errors import LostError, UsageError
from shanty.cli.context import context, note

_PATIENCE = 15.0  # seconds beyond the grace in which a stopped run must have ended


def stop(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN…", help="Ids, starts of ids, names, or `last`."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every run that is on.")] = False,
    kill: Annotated[bool, typer.Option("--kill", help="SIGKILL at once.")] = False,
) -> None:
    """Stop runs: SIGTERM to the ranks, then SIGKILL. A run that has ended is left as it is."""
    from shanty.launch.targets.base import Handle, Stop

    here = context()
    if not run and not everything:
        raise UsageError("which run?", fix="name it, or say `last`, or --all")
    found = [here.runs.find(reference) for reference in run or ()]
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
        here.target.ask(Handle(directory), Stop(grace))
        deadline = time.monotonic() + grace + _PATIENCE
        while not (status := here.runs.status(directory)).state.final:
            if time.monotonic() > deadline:
                raise LostError(f"run {directory.id} does not end", fix="try again with --kill")
            time.sleep(0.02)
        note(f"run {directory.id}: {status.state.value}")
