"""`shanty ps`: the runs and where they stand."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from shanty.carry.errors import UsageError
from shanty.carry.spec import State
from shanty.cli.context import context
from shanty.cli.table import ago, print_table, shorten

_RECENT = 20


def ps(
    everything: Annotated[
        bool, typer.Option("-a", "--all", help=f"All runs, not only the last {_RECENT}.")
    ] = False,
    active: Annotated[bool, typer.Option("--active", help="Only runs that are on.")] = False,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only runs in that state (repeatable).")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only runs of that name.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only runs with that tag.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the ids.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the runs, the newest last."""
    for wanted in state or ():
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
        and set(tag or ()) <= set(entry.tags)
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
