"""Starts a job from the terminal. What is needed only to follow it is imported after that."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from shanty.cli.context import Context, note, show_error
from shanty.cli.terminal import Interrupts, Show, leave_when_interrupted, rank_zero_input
from shanty.runtime.errors import LaunchError, PrepareError, UsageError, WorldError
from shanty.runtime.rundir import RunDir, new_id
from shanty.runtime.spec import JobSpec, Module, Script

if TYPE_CHECKING:
    from shanty.launch.targets.base import Planned

_UNREAD = 60.0  # seconds in which whoever waits for a value has read it


def start(
    context: Context,
    job: JobSpec,
    show: Show,
    *,
    dry_run: bool,
    detach: bool,
    form: str = "",
    submitted: Callable[[RunDir], None] | None = None,
) -> int:
    """Start `job` and stay with it to its end, unless detached; returns the exit code.

    With `dry_run` it is only shown, objects of a cluster in the `form` yaml or json.
    `submitted` is told of the run once it is there; else a detached one is named. Where it
    cannot even begin, the doctor says more of the cause, if somebody watches.
    """
    try:
        return _start(
            context, job, show, dry_run=dry_run, detach=detach, form=form, submitted=submitted
        )
    except (PrepareError, LaunchError) as error:
        if detach or dry_run or show.quiet or show.as_json or context.targets.is_queued(job):
            raise
        from shanty.cli import doctor
        from shanty.launch.finding import FoundError

        context.progress("")
        show_error(error)
        if not isinstance(error, FoundError):  # the doctor's own checks
            doctor.explain(context, job, str(error))
        return error.exit_code


def _start(
    context: Context,
    job: JobSpec,
    show: Show,
    *,
    dry_run: bool,
    detach: bool,
    form: str,
    submitted: Callable[[RunDir], None] | None,
) -> int:
    targets = context.targets.looking() if dry_run else context.targets
    context.progress.quiet = show.quiet or show.as_json
    for name in job.secrets:  # `context` has them; what is started inherits the rest
        os.environ.pop(name, None)
    run = RunDir(context.home / "runs" / new_id(time.time()))
    if job.debug_rank is not None:
        job = _with_terminal(job, detach=detach)
    leave_when_interrupted()  # what comes may take long; until the run is there, that is all
    plan = targets.plan(job, run)
    if job.debug_rank is not None and not 0 <= job.debug_rank < (plan.ranks or 1):
        raise UsageError(
            f"there is no rank {job.debug_rank} to debug",
            fix=f"the ranks are 0 … {(plan.ranks or 1) - 1}",
        )
    if dry_run:
        print(plan.render_as(form) if form else plan.render())
        return 0
    make_room(context, job, run, plan)
    interrupts = None if plan.takes_long else Interrupts()
    stdin, relay = rank_zero_input(closed=detach or job.debug_rank is not None)
    plan.submit(stdin)
    interrupts = interrupts or Interrupts()
    relay()
    if submitted is not None:
        submitted(run)
    elif detach:
        _name(run, show)
    if detach:
        return 0
    labels = plan.raw or plan.ranks != 1
    if job.debug_rank is not None:
        show = Show(quiet=True, as_json=show.as_json)  # the debugger has the terminal
    from shanty.cli.session import Session  # now that the run is on its way

    session = Session(targets, run, show, interrupts, labels=labels, launcher=plan.raw)
    code = session.follow()
    plan.settle()
    launched = code not in (LaunchError.exit_code, WorldError.exit_code)
    if not (launched or show.quiet or targets.is_queued(job)):
        _look_for_the_cause(context, job, run, show, interrupts)
    return code


def make_room(context: Context, job: JobSpec, run: RunDir, plan: Planned) -> None:
    """Look whether this machine can take it, and delete the oldest runs where there are many."""
    if not plan.takes_long:
        from shanty.launch.doctor import this_machine

        this_machine.check_before_run(job, context.home, context.environ, context.progress.finding)
    if run.path.parent.exists():
        many = sum(1 for _ in run.path.parent.iterdir()) >= context.settings.keep_runs
        if many and context.settings.keep_runs:
            context.runs.prune(context.settings.keep_runs - 1, _UNREAD)  # this one makes it full


def _name(run: RunDir, show: Show) -> None:
    """Say which run has begun."""
    if show.as_json:
        from shanty.launch.follow import JsonPrinter

        JsonPrinter(sys.stdout.buffer).event("submitted", run=run.id, path=str(run.path))
        return
    print(run.id)
    if not show.quiet:
        note(f"follow it with `shanty logs -f {run.id}`")


def _look_for_the_cause(
    context: Context, job: JobSpec, run: RunDir, show: Show, interrupts: Interrupts
) -> None:
    """Let the doctor say why the ranks could not be started, or were lost."""
    from shanty.cli import doctor
    from shanty.runtime.agent.control import read_status

    status = read_status(run)
    if not doctor.is_a_launch(status) or interrupts.count:
        return
    leave_when_interrupted()
    if show.as_json:
        from shanty.launch.follow import JsonPrinter

        found = [each.to_json() for each in doctor.findings(context, job)]
        JsonPrinter(sys.stdout.buffer).event("findings", run=run.id, findings=found)
    else:
        doctor.explain(context, job, status.failure.what if status.failure else "")


def _with_terminal(job: JobSpec, *, detach: bool) -> JobSpec:
    if not isinstance(job.command, (Script, Module)):
        raise UsageError("--debug is for Python scripts and modules")
    if job.on or job.hostfile:
        raise UsageError("--debug is for runs on this machine", fix="leave --on out for it")
    if job.image is not None:
        raise UsageError(
            "--debug does not reach into containers",
            "the terminal is not in them",
            "leave --image out for it",
        )
    if detach or not sys.stdin.isatty():
        raise UsageError("--debug needs a terminal", fix="run it by hand, without -d")
    return replace(job, env={**job.env, "SHANTY_DEBUG_TTY": os.ttyname(0)})
