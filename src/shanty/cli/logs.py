"""`shanty logs`: prints the output of a run, whole or as it comes."""

from __future__ import annotations

import os
import sys
import time

import click

from shanty.cli.context import context
from shanty.cli.options import json_option, run_argument
from shanty.runtime.errors import UsageError


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("-r", "--rank", type=int, multiple=True, help="Only that rank (repeatable).")
@click.option("--launcher", is_flag=True, help="Only what the launcher itself wrote.")
@click.option("--agent", is_flag=True, help="Only the log of shanty's own agents.")
@json_option
def logs(
    run: str, follow: bool, rank: tuple[int, ...], launcher: bool, agent: bool, as_json: bool
) -> None:
    """Print the output of a run; a single rank's comes without its label."""
    from shanty.launch.follow import Follower, JsonPrinter, Printer, standard_printer
    from shanty.launch.index import read_job
    from shanty.runtime.agent.control import read_status

    here = context()
    found = here.runs.find(run)
    if agent:
        if found.agent_log.exists():
            sys.stdout.write(found.agent_log.read_text(errors="replace"))
        return
    unknown = set(rank) - set(found.rank_logs())
    if unknown and not follow:
        raise UsageError(
            f"run {found.id} has no output of rank {min(unknown)}",
            fix="it has that of " + (", ".join(map(str, found.rank_logs())) or "no rank"),
        )
    wanted = () if launcher else rank or None
    job = read_job(found)
    raw = job is not None and type(job.command).__name__ == "Raw"
    follower = Follower(found, wanted, launcher or (raw and not rank))
    # By the ranks that are meant to be: those that have written yet may be fewer.
    ranks = len(rank) or read_status(found).ranks or len(found.rank_logs())
    labels = not launcher and ranks != 1
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
