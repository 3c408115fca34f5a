"""Follows a run in the terminal: its output, a status line, Ctrl-C, and how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import asdict

from shanty.cli.context import note
from shanty.cli.table import left_text, progress_text
from shanty.cli.terminal import Interrupts, Show, StatusLine
from shanty.launch.follow import Follower, JsonPrinter, Printer, standard_printer
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import Failure, State, Status

_QUICK, _SLOW = 0.005, 0.1  # seconds between two looks at the logs and the status
_PATIENT = 2.0  # seconds that a run may be pending before it is said why
_SHOWN = 8  # lines of the launcher's, where it is to blame
_LIVELY = 10.0  # seconds in which something new keeps the looks quick


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
        self._pending_since = 0.0  # 0: it is not
        self._trouble = ""  # as it was shown
        self._waits = ""  # why, as it was shown
        self._stalls = 0  # how many have been seen
        self._told: set[str] = set()  # the failures that have been shown in whole

    def follow(self) -> int:
        """Show the run until it has ended; returns the exit code for this process."""
        run = self._run
        if self._show.as_json:
            self._event("started", run=run.id, path=str(run.path))
        try:
            status = self._until_final()
        except BrokenPipeError:
            # Whoever read our output has gone (as `| head` does); the run is not theirs.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            note(f"nobody reads the output any more; the run goes on: shanty logs -f {run.id}")
            return 128 + signal.SIGPIPE
        if self._show.as_json:
            self._event("ended", run=run.id, **status.to_json())
        elif not self._show.quiet or status.state is not State.SUCCEEDED:
            summarise(run, status, self._told)
        if self._interrupts.count and status.state is State.STOPPED:
            return 130
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
                if status.attempt != before.attempt and status.attempt > 1:
                    self._show_attempt(status)
                self._show_waiting(status)
                self._show_trouble(status)
                if status.alone is not None and before.alone is None:
                    self._show_alone(status.alone)
                if status.not_finite and not before.not_finite:
                    self._show_not_finite(status.not_finite)
                final = status.state.final
                if final or (status.stalled is not None and status.stalled != before.stalled):
                    self._show_stalls()
                if final:
                    continue  # read what came before the end
            elif status.state.final and not lines:
                self._line.hide()
                self._printer.finish()
                if self._log is not None:
                    self._log.finish()
                return status
            self._serve_interrupts()
            if self._printer.at_line_start:
                self._line.show(status, lambda: progress_text(self._run))
            if not lines:
                time.sleep(wait)

    def _show_attempt(self, status: Status) -> None:
        """Say that there is another attempt, and why."""
        self._line.hide()
        self._printer.break_line()
        if self._show.as_json:
            self._event("attempt", number=status.attempt, reason=status.reason)
        else:
            note(status.reason)

    def _show_waiting(self, status: Status) -> None:
        """Say why the run has no hosts yet, and again when that is another reason.

        On a terminal the last line has the rest: the place in the queue, and the expected start.
        """
        pending = status.state is State.PENDING
        self._pending_since = (self._pending_since or time.monotonic()) if pending else 0.0
        if not pending or time.monotonic() < self._pending_since + _PATIENT or self._show.quiet:
            return  # most wait for a moment only
        known, self._waits = self._waits, status.reason.partition("; ")[0]
        if not status.reason or self._waits == known:
            return
        reason = status.reason
        self._line.hide()
        self._printer.break_line()
        if self._show.as_json:
            self._event("waits", reason=reason)
        else:
            note(f"run {self._run.id} waits: {reason}")

    def _show_trouble(self, status: Status) -> None:
        """Say what is wrong with the way to a run that goes on all the same, once."""
        known, self._trouble = self._trouble, status.trouble
        if status.trouble and status.trouble != known and not self._show.quiet:
            self._line.hide()
            self._printer.break_line()
            if self._show.as_json:
                self._event("trouble", text=status.trouble)
            else:
                note(status.trouble)

    def _show_alone(self, failure: Failure) -> None:
        """Say that the ranks each train by themselves."""
        self._line.hide()
        self._printer.break_line()
        if self._show.as_json:
            self._event("alone", **asdict(failure))
        else:
            note(failure.what)
            _explain(failure)

    def _show_not_finite(self, text: str) -> None:
        """Say that a number which the script logs has become NaN."""
        self._line.hide()
        self._printer.break_line()
        if self._show.as_json:
            self._event("not-finite", text=text)
        else:
            note(text)

    def _show_stalls(self) -> None:
        """Show why no rank makes progress, once for each time that it happens."""
        from shanty.cli.stacks import report, stalls_of

        for stall in stalls_of(self._run)[self._stalls :]:
            self._stalls += 1
            self._line.hide()
            self._printer.break_line()
            if self._show.as_json:
                self._event("stall", **stall)
            elif not self._show.quiet:
                note(report(stall))
                self._told.add(stall["what"])

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
            sys.exit(130)

    def _cancel(self, grace: float) -> None:
        try:
            self._targets.cancel(self._run, grace)
        except ShantyError as error:
            note(str(error))

    def _event(self, kind: str, **more: object) -> None:
        if isinstance(self._printer, JsonPrinter):
            self._printer.event(kind, **more)


def _explain(failure: Failure) -> None:
    if failure.why:
        print("  why: " + failure.why.replace("\n", "\n       "), file=sys.stderr)
    if failure.fix:
        print(f"  fix: {failure.fix}", file=sys.stderr)


def summarise(run: RunDir, status: Status, told: Collection[str] = ()) -> None:
    """Say how a run ended and where its things are; not what has been `told` already."""
    bold, red, green, off = (
        ("\033[1m", "\033[31m", "\033[32m", "\033[0m") if sys.stderr.isatty() else ("",) * 4
    )
    took = f" after {status.took():.1f} s"
    if status.state is State.SUCCEEDED:
        note(f"{green}run {run.id} succeeded{off}{took}")
        if status.alone:
            note(f"{red}{status.alone.what}{off}")
            _explain(status.alone)
    elif status.state is State.STOPPED:
        note(f"run {run.id} was stopped{took}")
    else:
        failure = status.failure
        what = failure.what if failure else "it failed"
        known = what in told
        what = "see above" if known else what
        note(f"{red}{bold}run {run.id} {status.state.value}{took}: {what}{off}")
        if failure and not known:
            _explain(failure)
        if failure and failure.log:
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
