"""`shanty prune`: delete the oldest runs."""

from __future__ import annotations

import click

from shanty.cli.context import context, note
from shanty.runtime.errors import UsageError


@click.command()
@click.option("--keep", type=int, help="How many runs to keep [setting keep_runs].")
def prune(keep: int | None) -> None:
    """Delete the oldest ended runs beyond a number; runs that are on stay."""
    here = context()
    if keep is not None and keep < 0:
        raise UsageError(f"--keep must be 0 or more, not {keep}")
    removed = here.runs.prune(here.settings.keep_runs if keep is None else keep)
    note(f"{len(removed)} run{'' if len(removed) == 1 else 's'} deleted")
