"""`shanty rm`: delete runs with their logs and artifacts."""

from __future__ import annotations

import click

from shanty.cli.arguments import runs_argument
from shanty.cli.context import context, note


@click.command()
@runs_argument
def rm(run: tuple[str, ...]) -> None:
    """Delete ended runs, their logs and their artifacts."""
    runs = context().runs
    for directory in [runs.find(reference) for reference in run]:
        runs.remove(directory)
        note(f"run {directory.id} is deleted")
