"""Calls a task on ranks: submit, wait, try again where that helps, value or exception."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shanty.cli.context import Context, note
from shanty.launch.follow import Follower, Line
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import HOST, MEMORY, PREEMPTED, JobSpec, State, Status
from shanty.sdk import cache
from shanty.sdk.future import Future
from shanty.sdk.run import LogLine, Run, WholeLines
from shanty.sdk.submit import start, task_job
from shanty.tasks import call, outcome
from shanty.tasks.errors import RunError
from shanty.tasks.task import Task

_GIVEN_UP = 86400.0  # seconds after which a folder of a call that was never made is removed
_LEAVING = 20.0  # seconds for a run to end that is stopped
_MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")  # Python's, and PyTorch's for a GPU

Show = Callable[[Run, Sequence[LogLine]], None]
"""Gets the lines of a run as they come, and many times a second none. What it raises stops the run,
and comes out of the call; it is called once more with the last lines, or more often."""


@dataclass
class _Call:
    """One call of a task, with its job and how often it may be tried again."""

    task: Task[..., Any]
    job: JobSpec
    each: bool
    key: str | None  # of its value in the cache
    retries: int
    more_memory: float


def submit(
    task: Task[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    show: Show | None = None,
    each: bool = False,
    on: str | None = None,
    by_value: Sequence[str] = (),
) -> Future[Any]:
    """Call a task on ranks. With `show`, which gets the lines, it is done when this returns.

    on: hosts in place of those of the task. by_value: names of modules of which the ranks get what
    the call needs, and which they do not import. Raises UsageError for options that make no sense,
    NotPicklableError for what cannot be sent; all else comes by the future.
    """
    here = Context(dict(os.environ))
    given = dict(task.options)
    if on is not None:
        given["on"] = on
    version, memory = given.pop("cache", None), given.pop("memory", None)
    retries = int(given.pop("retries", 0))
    future: Future[Any] = Future()
    key = None if version is None else cache.key(task.function, version, each, args, kwargs)
    if key is not None and cache.has(here.home, key):
        return future.fill(lambda: cache.read(here.home, key))
    folder = _folder(here.home)
    try:
        job = task_job(given, folder)
        elsewhere = bool(job.on or job.hostfile or job.image or job.machines)
        call.write(
            folder, task.function, args, kwargs,
            workspace=Path(job.workdir), each=each, elsewhere=elsewhere, by_value=by_value,
        )  # fmt: skip
        what = _Call(task, job, each, key, retries, _factor(memory, job))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    def work() -> Any:
        try:
            return _to_the_end(here, what, future, show)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    if show is not None:
        return future.fill(work)
    # Not one that the interpreter waits for at its end: the run goes on without it.
    threading.Thread(target=future.fill, args=(work,), daemon=True, name="shanty-call").start()
    return future


def _folder(home: Path) -> Path:
    """Make a folder for a call, which the run copies; what others left behind is removed."""
    place = home / "cache" / "calls"
    place.mkdir(parents=True, exist_ok=True)
    for old in place.iterdir():
        if old.stat().st_mtime < time.time() - _GIVEN_UP:
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=place))


def _factor(memory: str | None, job: JobSpec) -> float:
    """Read memory="x2"."""
    if memory is None:
        return 1.0
    try:
        factor = float(memory.removeprefix("x"))
    except ValueError:
        factor = 0.0
    if not memory.startswith("x") or not 1.0 < factor < 100.0:
        raise UsageError(
            f"memory={memory!r} makes no sense", fix='memory="x2" is twice as much at each attempt'
        )
    if job.memory_per_rank is None:
        raise UsageError(
            f"memory={memory!r} needs a memory to begin with", fix='add memory_per_rank="4G"'
        )
    return factor


def _to_the_end(here: Context, what: _Call, future: Future[Any], show: Show | None) -> Any:
    """Run it until it has succeeded, or another attempt would not help."""
    job, used = what.job, 0
    while True:
        run = start(here, replace(job, retries=max(0, what.retries - used)), quiet=show is None)
        future.began(run)
        status = _wait(run, show)
        used += status.attempt
        if status.state is State.SUCCEEDED:
            return _value(here, what, run, status)
        error = _error(run, status)
        cause = _cause(status, error)
        again = cause in (PREEMPTED, HOST) or (cause == MEMORY and what.more_memory > 1)
        if not again or used > what.retries or future.cancelled():
            raise error
        if cause == MEMORY:
            job = replace(job, memory_per_rank=int((job.memory_per_rank or 0) * what.more_memory))
        if show is not None:
            why = status.failure.what if status.failure else cause
            note(f"another attempt ({used} of {what.retries}): {why}")


def printed(_run: Run, lines: Sequence[LogLine]) -> None:
    """Print whole lines with their ranks: sys.stdout may be a notebook's, which takes text only."""
    for line in lines:
        label = "" if line.rank is None else f"[{line.rank}] "
        file = sys.stderr if line.stream == "stderr" else sys.stdout
        print(label + line.text, file=file, flush=True)


def _wait(run: Run, show: Show | None) -> Status:
    if show is None:
        return run.wait()
    follower = Follower(run._folder, None, launcher=False)
    whole = WholeLines()

    def pass_on(records: Sequence[Line]) -> None:
        show(run, whole.of(records))

    try:
        status = run._until_end(pass_on, follower=follower)
    except BaseException:  # Ctrl-C and other signals, and what `show` raises
        run.stop()
        run._until_end(pass_on, _LEAVING, follower)
        raise
    show(run, whole.rest())
    return status


def _value(here: Context, what: _Call, run: Run, status: Status) -> Any:
    ranks = range(status.ranks or 1)
    if what.each:
        value: Any = [outcome.read_value(run._folder, rank) for rank in ranks]
    else:
        value = outcome.read_value(run._folder, 0)
    if what.key is not None:
        cache.keep(here.home, what.key, run._folder, len(ranks) if what.each else None)
    return value


def _error(run: Run, status: Status) -> BaseException:
    """Return what the rank that failed first raised, else a RunError."""
    failure = status.failure
    if failure is not None and failure.rank is not None and status.state is State.FAILED:
        place = f"rank {failure.rank} on {failure.host}"
        error = outcome.read_error(run._folder, failure.rank, place)
        if error is not None:
            error.add_note(f"run {run.id}, {place}; its log: {failure.log or run.path / 'logs'}")
            return error
    try:
        run.raise_failure(status)
    except RunError as error:
        return error
    raise AssertionError


def _cause(status: Status, error: BaseException) -> str:
    if status.state is State.STOPPED:
        return ""
    if type(error).__name__ in _MEMORY_ERRORS:
        return MEMORY
    return status.failure.cause if status.failure else ""
