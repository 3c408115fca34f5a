"""`shanty show`: all about one run."""

from __future__ import annotations

import json
import time

import click

from shanty.cli.arguments import json_option, run_argument
from shanty.cli.context import context
from shanty.cli.stalled import report, stalls_of
from shanty.cli.table import ago, one_line, progress_text
from shanty.runtime.plan import read_plan
from shanty.runtime.rundir import read_json
from shanty.runtime.spec import Status


@click.command()
@run_argument
@json_option
def show(run: str, as_json: bool) -> None:
    """Show one run: what was asked, where it stands, why it failed, where its files are."""
    from shanty.launch.index import read_job

    runs = context().runs
    found = runs.find(run)
    entry = runs.entry(found)
    plan = read_plan(found)
    if as_json:
        print(
            json.dumps(
                {**entry.to_json(), "path": str(found.path), "plan": read_json(found.plan) or {}}
            )
        )
        return
    status, job = entry.status, read_job(found)
    mpi = f"{plan.lead.mpi['flavour']} {plan.lead.mpi['version']}" if plan else ""
    took = ago((status.ended or time.time()) - (status.started or status.created))
    rows = [
        ("run", entry.id + (f"  ({entry.name})" if entry.name else "")),
        ("tags", ", ".join(entry.tags)),
        ("command", one_line(job) if job else ""),
        ("in", entry.workspace),
        ("state", status.state.value),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        ("ranks", _ranks(status)),
        ("stalled", _stalled(status)),
        ("started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.created))),
        ("took", took),
        ("progress", progress_text(found)),
        ("mpi", mpi),
        ("network", plan.attempt.network.get("text", "") if plan else ""),
        ("python", plan.lead.python if plan else ""),
        ("folder", str(found.path)),
    ]
    for label, value in rows:
        if value:
            print(f"{label:<10} {value}")
    stalls = stalls_of(found)[-1:]
    for stall in stalls:
        print(f"\n{report(stall)}")
    if status.failure and status.failure.what not in [stall["what"] for stall in stalls]:
        print(f"\n{status.failure.what}")
        for label, value in (("why", status.failure.why), ("fix", status.failure.fix)):
            if value:
                print(f"  {label}: {value}")
        if status.failure.lines:
            print(f"\nlast lines ({status.failure.log}):")
            print(*("  " + line for line in status.failure.lines), sep="\n")


def _ranks(status: Status) -> str:
    """How many ranks there were, and how many of them MPI itself showed in one world."""
    text = f"{status.up} of {status.ranks}" if status.ranks else str(status.up)
    return f"{text}, {status.joined} joined in one MPI world" if status.joined else text


def _stalled(status: Status) -> str:
    """Since when no rank has made progress, while the run is on."""
    if status.stalled is None:
        return ""
    return f"for {ago(time.time() - status.stalled)}"
