"""Starts a job from the terminal. What is needed only to follow it is imported after that."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from shanty.carry.errors import UsageError
from shanty.carry.rundir import RunDir, new_id
from shanty.carry.spec import JobSpec
from shanty.cli.context import Context, note
from shanty.cli.stdin import rank_zero_input


@dataclass(frozen=True)
class Show:
    """How much is shown, and for whom."""

    quiet: bool = False
    as_json: bool = False


def start(context: Context, job: JobSpec, show: Show, *, dry_run: bool, detach: bool) -> int:
    """Start `job` and stay with it to its end, unless detached; returns the exit code."""
    target = context.target
    run = RunDir(context.home / "runs" / new_id(time.time()))
    if job.debug_rank is not None:
        job = _with_terminal(job, detach=detach)
    plan = target.plan(job, target.survey(job), run)
    if dry_run:
        print(plan.render())
        return 0
    stdin, relay = rank_zero_input(closed=detach or job.debug_rank is not None)
    handle = target.submit(job, plan, run, stdin)
    relay()
    if detach:
        if show.as_json:
            from shanty.launch.follow import JsonPrinter

            JsonPrinter(sys.stdout.buffer).event("submitted", run=run.id, path=str(run.path))
        else:
            print(run.id)
            if not show.quiet:
                note(f"follow it with `shanty logs -f {run.id}`")
        return 0
    labels = plan.raw or plan.layout.ranks != 1
    if job.debug_rank is not None:
        show = Show(quiet=True, as_json=show.as_json)  # the debugger has the terminal
    from shanty.cli.session import Session  # now that the run is on its way

    code = Session(target, handle, show, labels=labels, launcher=plan.raw).follow()
    if len(list((context.home / "runs").iterdir())) > context.settings.keep_runs:
        context.runs.prune(context.settings.keep_runs)
    return code


def _with_terminal(job: JobSpec, *, detach: bool) -> JobSpec:
    from dataclasses import replace

    if detach or not sys.stdin.isatty():
        raise UsageError("--debug needs a terminal", fix="run it by hand, without -d")
    return replace(job, env={**job.env, "SHANTY_DEBUG_TTY": os.ttyname(0)})
