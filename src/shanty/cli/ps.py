"""`shanty ps`: the runs and where they stand."""

from __future__ import annotations

import json
import time

import click

from shanty.cli.arguments import json_option
from shanty.cli.context import context
from shanty.cli.table import ago, print_table, shorten
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import State

_RECENT = 20


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, not only the newest 20.")
@click.option("--active", is_flag=True, help="Only runs that are on.")
@click.option("--state", multiple=True, help="Only runs in that state (repeatable).")
@click.option("--name", help="Only runs of that name.")
@click.option("--tag", multiple=True, help="Only runs with that tag (repeatable).")
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
    """List the runs, the newest last."""
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
                    + (f" ({entry.status.exit_code})" if entry.status.exit_code else ""),
                    str(entry.status.ranks or ""),
                    ago(now - entry.status.created) + " ago",
                    ago((entry.status.ended or now) - entry.status.created),
                    shorten(" ".join(entry.command), 48),
                )
                for entry in entries
            ],
        )
    else:
        print("no runs" if everything or not active else "no run is on")
