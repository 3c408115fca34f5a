"""Prints the output of a run."""

from __future__ import annotations

import os
import sys
import time

from shanty.client.context import Context
from shanty.launch.follow import Excerpt as Excerpt
from shanty.launch.follow import Follower, JsonPrinter, Printer, standard_printer
from shanty.launch.index import read_job
from shanty.runtime.errors import UsageError
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Raw


def print_logs(
    here: Context,
    found: RunDir,
    *,
    follow: bool,
    rank: tuple[int, ...] = (),
    launcher: bool = False,
    as_json: bool = False,
    excerpt: Excerpt | None = None,
) -> None:
    """Print the output of a run, or an `excerpt` of it; UsageError for ranks without any."""
    excerpt = excerpt or Excerpt()
    known = {each for n in found.attempts() for each in RunDir(found.path, n).rank_logs()}
    unknown = set(rank) - known
    if unknown and not follow:
        raise UsageError(
            f"run {found.id} has no output of rank {min(unknown)}",
            fix="it has that of " + (", ".join(map(str, sorted(known))) or "no rank"),
        )
    wanted = () if launcher else rank or None
    job = read_job(found)
    raw = job is not None and isinstance(job.command, Raw)
    follower = Follower(found, wanted, launcher=launcher or (raw and not rank))
    # By the ranks that are meant to be: those that have written yet may be fewer.
    ranks = len(rank) or read_status(found).ranks or len(known)
    labels = not launcher and ranks != 1
    printer: Printer | JsonPrinter = (
        JsonPrinter(sys.stdout.buffer) if as_json else standard_printer(labels=labels)
    )
    try:
        while True:
            final = here.runs.status(found).state.final
            while lines := follower.read():
                printer.show(excerpt.of(lines))
                if excerpt.over:
                    break
            if final or not follow or excerpt.over:
                break
            time.sleep(0.05)
        printer.finish()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        printer.break_line()
