"""`shanty rm`: delete runs with their logs and artifacts."""

from __future__ import annotations

import click

from shanty.cli.context import context, note


@click.command()
@click.argument("run", metavar="RUN...", nargs=-1, required=True)
def rm(run: tuple[str, ...]) -> None:
    """Delete ended runs, their logs and their artifacts."""
    runs = context().runs
    found = {directory.id: directory for directory in map(runs.find, run)}
    for name, directory in found.items():
        runs.remove(directory)
        note(f"run {name} is deleted")
