"""`shanty rm`: delete runs with their logs and artifacts."""

from __future__ import annotations

from typing import Annotated

import typer

from shanty.cli.context import context, note


def rm(
    run: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Ids, starts of ids, names, or `last`.")
    ],
) -> None:
    """Delete ended runs, their logs and their artifacts."""
    runs = context().runs
    for directory in [runs.find(reference) for reference in run]:
        runs.remove(directory)
        note(f"run {directory.id} is deleted")
