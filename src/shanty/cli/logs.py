"""`shanty logs`: the output of a run, whole or as it comes."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from shanty.carry.errors import UsageError
from shanty.cli.arguments import RunArgument
from shanty.cli.context import context


def logs(
    run: RunArgument = "last",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")
    ] = False,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", "-r", help="Only that rank (repeatable).")
    ] = None,
    launcher: Annotated[
        bool, typer.Option("--launcher", help="Only what the launcher itself wrote.")
    ] = False,
    agent: Annotated[
        bool, typer.Option("--agent", help="Only the log of shanty's own agents.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the output of a run; a single rank's comes without its label."""
    from shanty.launch.follow import Follower, JsonPrinter, Printer, standard_printer
    from shanty.launch.index import read_job
    from shanty.launch.targets.base import Handle

    here = context()
    found = here.runs.find(run)
    if agent:
        sys.stdout.write(found.agent_log.read_text(errors="replace"))
        return
    unknown = set(rank or ()) - set(found.rank_logs())
    if unknown and not follow:
        raise UsageError(
            f"run {found.id} has no output of rank {min(unknown)}",
            fix="it has that of " + (", ".join(map(str, found.rank_logs())) or "no rank"),
        )
    handle = Handle(found)
    wanted = [] if launcher else rank
    job = read_job(found)
    raw = job is not None and type(job.command).__name__ == "Raw"
    follower = Follower(here.target, handle, wanted, launcher or (raw and not rank))
    labels = not launcher and len(rank or found.rank_logs()) != 1
    printer: Printer | JsonPrinter = (
        JsonPrinter(sys.stdout.buffer) if as_json else standard_printer(labels=labels)
    )
    try:
        while True:
            final = here.runs.status(found).state.final
            while lines := follower.read():
                printer.show(lines)
            if final or not follow:
                break
            time.sleep(0.05)
        printer.finish()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        printer.break_line()
