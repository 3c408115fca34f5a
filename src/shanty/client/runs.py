"""Runs in Python: starts them, follows them and finds them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shanty.client.context import Context
from shanty.client.start import plan_run, start_run
from shanty.launch.follow import LAUNCHER
from shanty.launch.follow import Follower as Follower
from shanty.launch.follow import Line as Line
from shanty.runtime.errors import NotFoundError
from shanty.runtime.frames import STDERR
from shanty.runtime.rundir import RunDir, read_lines
from shanty.runtime.spec import JobSpec, State, Status
from shanty.tasks import outcome
from shanty.tasks.errors import RunError

if TYPE_CHECKING:
    from shanty.client.report import RunReport

_QUICK, _SLOW = 0.005, 0.1  # seconds between two looks
_LIVELY = 10.0  # seconds after a change in which the looks stay quick


class LogLine(NamedTuple):
    """A line that a rank wrote; `rank` is None for a line of the launcher.

    `stream` is "stdout" or "stderr", `time` seconds since 1970.
    """

    rank: int | None
    text: str
    stream: str
    time: float


class WholeLines:
    """Joins the records of a log to lines; the parts of a line are kept until the line ends."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], tuple[float, bytes]] = {}

    def of(self, records: Sequence[Line]) -> list[LogLine]:
        """Return the lines that are whole by these records, in their order."""
        found = []
        for rank, record in records:
            key = (rank, record.stream)
            text = self._parts.pop(key, (0.0, b""))[1] + record.text
            if record.whole:
                found.append(_log_line(key, record.time, text))
            else:
                self._parts[key] = record.time, text
        return found

    def rest(self) -> list[LogLine]:
        """Return last lines, which have no end."""
        parts, self._parts = self._parts, {}
        return [_log_line(key, time, text) for key, (time, text) in parts.items()]


def _log_line(key: tuple[int, int], time: float, text: bytes) -> LogLine:
    rank, stream = key
    return LogLine(
        None if rank == LAUNCHER else rank,
        text.decode("utf-8", "replace"),
        "stderr" if stream == STDERR else "stdout",
        time,
    )


class Run:
    """A run, active or finished; independent of the lifetime of this object."""

    def __init__(
        self, here: Context, folder: RunDir, settle: Callable[[], None] = lambda: None
    ) -> None:
        self._here = here
        self._folder = folder
        self._settle = settle  # waits for what cleans up after the run

    @property
    def id(self) -> str:
        """Its id, which `shanty logs` and the other verbs take."""
        return self._folder.id

    @property
    def path(self) -> Path:
        """Its folder on this machine."""
        return self._folder.path

    @property
    def job(self) -> JobSpec | None:
        """What was asked for; None if its file is damaged."""
        from shanty.launch.index import read_job  # SQLite is not for a first call to load

        return read_job(self._folder)

    @property
    def status(self) -> Status:
        """Its present status: `.state`, `.ranks`, `.failure`, `.exit_code` and more.

        NotFoundError where it has been deleted.
        """
        found = self._here.targets.describe([self._folder])[self._folder]
        if found.state is State.LOST and not self.path.exists():
            raise NotFoundError(f"run {self.id} has been deleted")
        return found

    @property
    def state(self) -> State:
        """pending, starting, running, succeeded, failed, stopped or lost."""
        return self.status.state

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.state.final

    def wait(self, timeout: float | None = None, *, check: bool = False) -> Status:
        """Wait for its end.

        timeout: seconds, after which TimeoutError is raised and the run goes on. check: raise
        RunError where it did not succeed.
        """
        status = self._until_end(lambda _lines: None, timeout)
        if check and status.state is not State.SUCCEEDED:
            raise self._error(status)
        return status

    def _error(self, status: Status) -> RunError:
        """Return the error for an end other than success."""
        found = status.failure
        if found is None:
            error = RunError(f"run {self.id} was stopped", self)
        else:
            error = RunError(found.what, self, found, why=found.why, fix=found.fix, log=found.log)
        error.exit_code = status.exit_code or RunError.exit_code
        return error

    def _until_end(
        self,
        show: Callable[[Sequence[Line]], None],
        timeout: float | None = None,
        follower: Follower | None = None,
    ) -> Status:
        """Wait for the end; `show` gets what the `follower` reads meanwhile."""
        began = lively = time.monotonic()
        before: Status | None = None
        while True:
            status = self.status
            lines = follower.read() if follower else []
            show(lines)
            now = time.monotonic()
            if status.state.final and not lines:
                self._settle()
                return status
            if timeout is not None and now > began + timeout:
                raise TimeoutError(f"run {self.id} has not ended within {timeout:g} s")
            lively = now if lines or status != before else lively
            before = status
            if not lines:
                time.sleep(_QUICK if now < lively + _LIVELY else _SLOW)

    def logs(self, rank: int | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all ranks, or of one rank, in the order of time.

        follow: continue until the run has ended.
        """
        follower = Follower(self._folder, None if rank is None else [rank], launcher=rank is None)
        whole = WholeLines()
        while True:
            final = not follow or self.done
            records = follower.read()
            yield from whole.of(records)
            if not records and final:
                break
            if not records:
                time.sleep(_SLOW)
        yield from whole.rest()

    def report(self) -> RunReport:
        """Return all that is known of it, as `shanty show` does: hosts, ranks, attempts and more.

        NotFoundError where it has been deleted.
        """
        from shanty.client.report import describe_run  # as for `job`

        self._look()
        (entry,) = self._here.runs.read([self._folder])
        return describe_run(self._folder, entry)

    def metrics(self) -> list[dict[str, Any]]:
        """Return what `shanty.log` has kept so far, in its order, with time and rank."""
        self._look()
        return read_lines(self._folder.metrics)

    def artifacts(self) -> Path:
        """Return the folder of what it has saved; from hosts it comes when the run has ended."""
        self._look()
        return self._folder.artifacts

    def value(self, rank: int = 0) -> Any:
        """Return what the function of a task returned in a rank, for when its caller is gone.

        Waits for the end. None where that rank left nothing; raises RunError where the run did
        not succeed.
        """
        status = self.wait(check=True)
        with contextlib.suppress(FileNotFoundError):
            return outcome.read_value(RunDir(self.path, status.attempt), rank)
        return None

    def stacks(self) -> list[dict[str, Any]]:
        """Return where each rank stands now; RunError where it has ended or does not answer."""
        reply = self._here.targets.stacks(self._folder)
        if not reply.ok:
            raise RunError(reply.error, self)
        return reply.stacks

    def stop(self, grace: float | None = None) -> None:
        """Stop the run: SIGTERM, then SIGKILL after `grace` seconds [5]; it may have ended already.

        Returns once the run was asked to stop; `wait` for its end.
        """
        seconds = float(self._here.settings.stop_grace if grace is None else grace)
        reply = self._here.targets.cancel(self._folder, seconds)
        if not reply.ok:
            raise RunError(f"run {self.id} cannot be stopped: {reply.error}", self)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does, to every rank that catches it; RunError where that fails.

        For runs on this machine and on hosts by ssh.
        """
        reply = self._here.targets.signal(self._folder, signal.SIGINT)
        if not reply.ok:
            raise RunError(f"run {self.id} cannot be interrupted: {reply.error}", self)

    def _look(self) -> None:
        """Bring what is here up to date."""
        _ = self.status

    def __repr__(self) -> str:
        return f"<run {self.id} {self.state.value if self.path.exists() else 'deleted'}>"


def start_job(
    here: Context,
    job: JobSpec,
    *,
    quiet: bool = True,
    stdin: int | None = None,
    began: Callable[[Run], None] = lambda _run: None,
) -> Run:
    """Start a job without a terminal; rank 0 reads the descriptor `stdin`, or nothing.

    `began` gets the run before Ctrl-C can come between.
    """
    here.progress.quiet = quiet
    plan = plan_run(here, job)
    run = Run(here, plan.run, plan.settle)
    start_run(here, plan, stdin=stdin, began=lambda: began(run))
    return run


def find(reference: str = "last") -> Run:
    """Find a run by its id, the beginning of it, its name, or `last`. Raises NotFoundError."""
    here = Context(dict(os.environ))
    return Run(here, here.runs.find(reference))


def runs() -> list[Run]:
    """Return all runs of this machine's user, the oldest first."""
    here = Context(dict(os.environ))
    return [Run(here, here.runs.directory(run_id)) for run_id in here.runs.ids()]
