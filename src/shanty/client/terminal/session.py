"""Follows a run in the terminal: its output, a status line, Ctrl-C, and how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from shanty.client.context import note
from shanty.client.terminal.display import Interrupts, Show, StatusLine, ranks_there
from shanty.client.terminal.table import left_text, progress_text
from shanty.launch.follow import Follower, JsonPrinter, Printer, standard_printer
from shanty.launch.targets.registry import Targets
from shanty.runtime import site
from shanty.runtime.errors import ShantyError
from shanty.runtime.plan import read_plan
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import Failure, State, Status

_QUICK, _SLOW = 0.005, 0.1  # seconds between two looks at the logs and the status
_PATIENT = 2.0  # seconds that a run may be pending before the reason is shown
_REST = 1.0  # seconds in which the rest of a stopped run's output is shown
_SHOWN = 8  # lines of the launcher that are shown where it is to blame
_LIVELY = 10.0  # seconds after a change in which the looks stay quick


class Session:
    """Follows one run from the terminal in which it was started."""

    def __init__(
        self,
        targets: Targets,
        run: RunDir,
        show: Show,
        interrupts: Interrupts,
        *,
        labels: bool,
        launcher: bool,
    ) -> None:
        self._targets = targets
        self._run = run
        self._show = show
        self._follower = Follower(run, None, launcher=launcher)
        self._printer: Printer | JsonPrinter = (
            JsonPrinter(sys.stdout.buffer) if show.as_json else standard_printer(labels=labels)
        )
        self._log: Printer | None = None
        if show.log is not None:
            self._log = Printer(show.log, show.log, labels=labels, colour=False, live=False)
        visible = not show.quiet and not show.as_json and sys.stderr.isatty()
        self._line = StatusLine(sys.stderr, visible=visible)
        self._interrupts = interrupts
        self._answered = 0
        self._ended = 0.0  # when the run had ended that was stopped here; 0: it has not
        self._pending_since = 0.0  # 0: it is not
        self._waits = ""  # why, as it was shown
        self._stalls = 0  # how many have been seen
        self._reported: set[str] = set()  # the failures that have been shown in whole

    def follow(self) -> int:
        """Show the run until it has ended; returns the exit code for this process."""
        run = self._run
        if self._show.as_json:
            self._event("started", run=run.id, path=str(run.path))
        try:
            status = self._until_final()
        except BrokenPipeError:
            # The reader of our output has gone, as `| head` does; the run is not the reader's.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            note(f"nobody reads the output any more; the run goes on: shanty logs -f {run.id}")
            return 128 + signal.SIGPIPE
        if self._show.as_json:
            self._event("ended", run=run.id, **status.to_json())
        elif not self._show.quiet or status.state is not State.SUCCEEDED:
            summarise(run, status, self._reported)
        if self._interrupts.count and status.state is State.STOPPED:
            return 128 + self._interrupts.first
        return status.exit_code or 0

    def _until_final(self) -> Status:
        status, looked, lively = Status(), 0.0, time.monotonic()
        while True:
            lines = self._follower.read()
            now = time.monotonic()
            if lines:
                lively = now
                self._line.hide()
                self._printer.show(lines)
                if self._log is not None:
                    self._log.show(lines)
            wait = _QUICK if now < lively + _LIVELY else _SLOW
            if not status.state.final and now >= looked + wait:
                before, looked = status, now
                status = self._targets.describe([self._run])[self._run]
                lively = now if status != before else lively
                self._show_changes(before, status)
                if status.state.final:
                    continue  # read what came before the end
            elif status.state.final and (not lines or self._cuts(now)):
                self._line.hide()
                self._printer.finish()
                if self._log is not None:
                    self._log.finish()
                if lines:
                    note(f"the rest of the output is in {self._run.logs}")
                return status
            self._serve_interrupts()
            if self._interrupts.notices and status.state is State.RUNNING:
                self._pass_on(self._interrupts.notices.pop(0))
            if self._printer.at_line_start:
                self._line.show(status, lambda: progress_text(self._run))
            if not lines:
                time.sleep(wait)

    def _cuts(self, now: float) -> bool:
        """Return True where the rest of the output of a run that was stopped takes too long."""
        if not self._interrupts.count:
            return False
        self._ended = self._ended or now
        return now > self._ended + _REST

    def _show_changes(self, before: Status, status: Status) -> None:
        """Show what is new in the status: another attempt, why the run waits, what is wrong."""
        if status.attempt != before.attempt and status.attempt > 1:
            fields = {"number": status.attempt, "reason": status.reason}
            self._say("attempt", status.reason, **fields)
        self._show_waiting(status)
        # The run goes on in spite of a trouble with the way to it.
        if status.trouble not in ("", before.trouble) and not self._show.quiet:
            self._say("trouble", status.trouble, text=status.trouble)
        if status.alone is not None and before.alone is None:
            alone = status.alone
            self._say("alone", alone.what + _reasons(alone), **asdict(alone))
        if status.not_finite and not before.not_finite:
            self._say("not-finite", status.not_finite, text=status.not_finite)
        for text in status.lost[len(before.lost) :]:
            left = f"{ranks_there(status)} left"
            self._say("lost", f"{text}; {left}", text=text, left=status.up)
        for text in status.returned[len(before.returned) :]:
            self._say("returned", f"{text}; {ranks_there(status)}", text=text, up=status.up)
        if status.network not in ("", before.network):
            self._say("network", status.network, text=status.network)
        if status.state.final or status.stalled not in (None, before.stalled):
            self._show_stalls()

    def _show_waiting(self, status: Status) -> None:
        """Show why the run has no hosts yet, and again when the reason changes.

        On a terminal the last line has the rest: the place in the queue, and the expected start.
        """
        pending = status.state is State.PENDING
        self._pending_since = (self._pending_since or time.monotonic()) if pending else 0.0
        if not pending or time.monotonic() < self._pending_since + _PATIENT or self._show.quiet:
            return  # most wait for a moment only
        known, self._waits = self._waits, status.reason.partition("; ")[0]
        if status.reason and self._waits != known:
            text = f"run {self._run.id} waits: {status.reason}"
            self._say("waits", text, reason=status.reason)

    def _show_stalls(self) -> None:
        """Show why no rank makes progress, once for each time that it happens."""
        if not self._run.stalls.exists():
            return
        from shanty.client.stalls import report, stalls_of

        for stall in stalls_of(self._run)[self._stalls :]:
            self._stalls += 1
            if self._show.as_json or not self._show.quiet:
                self._say("stall", report(stall), **stall)
                self._reported.add(stall["what"])

    def _say(self, event: str, shown: str, /, **fields: object) -> None:
        """Write a message of ours between the lines of the ranks; as JSON, an event with fields."""
        self._line.hide()
        self._printer.break_line()
        if self._show.as_json:
            self._event(event, **fields)
        else:
            note(shown)

    def _serve_interrupts(self) -> None:
        """Stop the run at the first Ctrl-C, kill it at the second, leave it at the third."""
        if self._answered == self._interrupts.count:
            return
        self._answered = self._interrupts.count
        self._line.hide()
        if self._interrupts.count == 1:
            note("stopping … (Ctrl-C again to kill)")
            self._cancel(self._targets.settings.stop_grace)
        elif self._interrupts.count == 2:
            note("killing …")
            self._cancel(0.0)
        else:
            note(f"leaving; see `shanty ps`, the run is {self._run.id}")
            sys.exit(128 + self._interrupts.first)

    def _pass_on(self, number: signal.Signals) -> None:
        """Send a signal that came for this process to the ranks that have a handler for it."""
        from shanty.client.signals import passed_on

        text, reached = passed_on(self._targets, self._run, number)
        if self._show.as_json or not (self._show.quiet and reached):
            self._say("signal", text, signal=number.name, reached=reached, text=text)
        if number == signal.SIGHUP and not reached:  # as without a handler for it here
            note(f"the run goes on: shanty logs -f {self._run.id}")
            sys.exit(128 + number)

    def _cancel(self, grace: float) -> None:
        try:
            self._targets.cancel(self._run, grace)
        except ShantyError as error:
            note(str(error))

    def _event(self, kind: str, **more: object) -> None:
        if isinstance(self._printer, JsonPrinter):
            self._printer.event(kind, **more)


def _reasons(failure: Failure) -> str:
    """Return the lines below a failure: why it happened, and what to do."""
    why = failure.why.replace("\n", "\n       ")
    lines = [f"\n  {label}: {text}" for label, text in (("why", why), ("fix", failure.fix)) if text]
    return "".join(lines)


def _with_unsent_file(run: RunDir, failure: Failure) -> Failure:
    """Add that a file which the rank misses is here and was not sent, if that is so."""
    job, plan = read_json(run.job) or {}, read_plan(run)
    if failure.rank is None or plan is None or not site.exists(run.path) or not job.get("workdir"):
        return failure
    from shanty.launch.content.unsent import explained

    there = list({node.workdir for node in plan.attempt.nodes})
    found = explained(Path(job["workdir"]), failure.lines, there)
    return failure if found is None else replace(failure, why=found[0], fix=found[1])


def summarise(run: RunDir, status: Status, reported: Collection[str] = ()) -> None:
    """Say how a run ended and where its files are; what was `reported` is not repeated."""
    bold, red, green, off = (
        ("\033[1m", "\033[31m", "\033[32m", "\033[0m") if sys.stderr.isatty() else ("",) * 4
    )
    took = f" after {status.took():.1f} s"
    if status.state is State.SUCCEEDED:
        note(f"{green}run {run.id} succeeded{off}{took}")
        if status.alone:
            note(f"{red}{status.alone.what}{off}{_reasons(status.alone)}")
    elif status.state is State.STOPPED:
        note(f"run {run.id} was stopped{took}")
    else:
        failure = _with_unsent_file(run, status.failure or Failure("it failed"))
        known = failure.what in reported
        what, reasons = ("see above", "") if known else (failure.what, _reasons(failure))
        note(f"{red}{bold}run {run.id} {status.state.value}{took}: {what}{off}{reasons}")
        if failure.log:
            print(f"  log: {failure.log}", file=sys.stderr)
            if failure.rank is None:
                print(
                    *(f"  | {line}" for line in failure.lines[-_SHOWN:]), sep="\n", file=sys.stderr
                )
    if status.not_finite:
        note(f"{red}{status.not_finite}{off}")
    logs = RunDir(run.path, status.attempt).logs
    for label, path in (("logs", logs), ("metrics", run.metrics)):
        if path.exists() and (label != "logs" or status.state is State.SUCCEEDED):
            print(f"  {label + ':':<10} {path}", file=sys.stderr)
    saved = sorted(run.artifacts.glob("*")) if run.artifacts.is_dir() else []
    if saved:
        names = ", ".join(path.name for path in saved[:5]) + (" …" if len(saved) > 5 else "")
        print(f"  artifacts: {run.artifacts} ({names})", file=sys.stderr)
    if left := read_json(run.left):
        print(f"  left:      {left_text(left)}", file=sys.stderr)
