"""Starts a job from the terminal. What is needed only to follow it is imported after that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from shanty.client.context import Context, note
from shanty.client.start import plan_run, start_run
from shanty.client.terminal.display import Interrupts, Show, leave_when_interrupted, rank_zero_input
from shanty.client.terminal.errors import show_error
from shanty.runtime.errors import LaunchError, PrepareError, UsageError, WorldError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Module, Script


def start(
    context: Context,
    job: JobSpec,
    show: Show,
    *,
    dry_run: bool = False,
    detach: bool = False,
    form: str = "",
    submitted: Callable[[RunDir], None] | None = None,
    reads: bool = True,
) -> int:
    """Start `job` and stay with it to its end, unless detached; returns the exit code.

    With `dry_run` it is only shown, objects of a cluster in the `form` yaml or json.
    `submitted` gets the run once it exists; without it, the id of a detached run is printed. Where
    the run cannot even begin, the doctor says more of the cause, if somebody watches. reads: rank 0
    has the standard input.
    """
    targets = context.targets.looking() if dry_run else context.targets
    context.progress.quiet = show.quiet or show.as_json
    for name in job.secrets:  # `context` has them; what is started inherits the rest
        os.environ.pop(name, None)
    if job.debug_rank is not None:
        job = _with_terminal(job, detach=detach)
    leave_when_interrupted()  # what comes may take long; until the run is there, that is all
    interrupts = Interrupts()
    try:
        plan = plan_run(context, job, targets)
        if job.debug_rank is not None and not 0 <= job.debug_rank < (plan.ranks or 1):
            raise UsageError(
                f"rank {job.debug_rank} does not exist, so it cannot be debugged",
                fix=f"the ranks are 0 … {(plan.ranks or 1) - 1}",
            )
        if dry_run:
            print(plan.render_as(form) if form else plan.render())
            return 0
        closed = detach or job.debug_rank is not None or not reads
        stdin, relay = rank_zero_input(closed=closed)
        shield = interrupts.counted(from_the_start=not plan.takes_long)
        start_run(context, plan, stdin=stdin, shield=shield)
    except (PrepareError, LaunchError) as error:
        if detach or dry_run or show.quiet or show.as_json or targets.declared(job).late:
            raise
        return _explained(context, job, error)
    relay()
    if submitted is not None:
        submitted(plan.run)
    elif detach:
        _name(plan.run, show)
    if detach:
        return 0
    if job.retries:
        plan.stand_by()
    labels = plan.raw or plan.ranks != 1
    if job.debug_rank is not None:
        show = Show(quiet=True, as_json=show.as_json)  # the debugger has the terminal
    from shanty.client.terminal.session import Session  # now that the run is on its way

    session = Session(targets, plan.run, show, interrupts, labels=labels, launcher=plan.raw)
    code = session.follow()
    plan.settle()
    if code and job.retries and not interrupts.count:
        from shanty.client.terminal.lost_lead import next_job

        following = next_job(plan, show)
        if following is not None:
            return _go_on(context, following, show, code)
    launched = code not in (LaunchError.exit_code, WorldError.exit_code)
    if not (launched or show.quiet or targets.declared(job).late):
        _look_for_the_cause(context, job, plan.run, show, interrupts)
    return code


def _go_on(context: Context, job: JobSpec, show: Show, code: int) -> int:
    """Start the attempt that follows the loss of a lead host; `code`: what that ended with."""
    try:
        return start(context, job, show, reads=False)
    except UsageError as error:
        note(f"no other attempt is possible: {error}")
        return code


def _explained(context: Context, job: JobSpec, error: PrepareError | LaunchError) -> int:
    """Print why a run could not begin, and what the doctor finds; returns the exit code."""
    from shanty.client.terminal import findings
    from shanty.launch.finding import FoundError

    context.progress("")
    show_error(error)
    if not isinstance(error, FoundError):  # the doctor's own checks
        findings.explain(context, job, str(error))
    return error.exit_code


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
    from shanty.client.terminal import findings
    from shanty.runtime.run_status import read_status

    status = read_status(run)
    if not findings.is_a_launch(status) or interrupts.count:
        return
    leave_when_interrupted()
    if show.as_json:
        from shanty.launch.follow import JsonPrinter

        found = [each.to_json() for each in findings.findings(context, job)]
        JsonPrinter(sys.stdout.buffer).event("findings", run=run.id, findings=found)
    else:
        findings.explain(context, job, status.failure.what if status.failure else "")


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
