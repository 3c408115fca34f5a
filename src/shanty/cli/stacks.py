"""`shanty stacks`: where every rank stands, equal stacks together."""

from __future__ import annotations

import json

import click

from shanty.cli.arguments import json_option, run_argument
from shanty.cli.context import context
from shanty.cli.grouping import grouped, label
from shanty.runtime.errors import UsageError


@click.command()
@run_argument
@click.option("--threads", is_flag=True, help="All threads, not only the main one.")
@json_option
def stacks(run: str, threads: bool, as_json: bool) -> None:
    """Show the stack of every rank, innermost call first, fewest ranks first."""
    from shanty.launch.targets.base import Handle, Stacks

    here = context()
    found = here.runs.find(run)
    reply = here.targets.ask(Handle(found), Stacks())
    if not reply.ok:
        raise UsageError(
            f"run {found.id}: {reply.error}", fix="stacks are those of a run that is on"
        )
    if as_json:
        print(json.dumps(reply.data))
        return
    for ranks, text in grouped(reply.data, all_threads=threads):
        print(f"{label(ranks)}:\n{text}\n")
