"""Calls a task on ranks: submit, wait, try again where that helps, value or exception."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  what it has done at the end comes after ours
import contextlib
import errno
import hashlib
import inspect
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shanty.client import cache
from shanty.client.context import Context, note
from shanty.client.future import CancelledError, Future
from shanty.client.jobs import task_job
from shanty.client.runs import LogLine, Run, WholeLines, start_job
from shanty.launch.follow import Follower, Line
from shanty.runtime import platform
from shanty.runtime.errors import ShantyError, UsageError
from shanty.runtime.rundir import RunDir, storage_errors
from shanty.runtime.spec import HOST, MEMORY, PREEMPTED, JobSpec, State, Status
from shanty.tasks import call, outcome, pickling
from shanty.tasks.errors import RunError
from shanty.tasks.task import Task

_GIVEN_UP = 86400.0  # seconds after which a folder of a call that was never made is removed
_LEAVING = 20.0  # seconds for a run to end that is stopped
_starting: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
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
    NotPicklableError for what cannot be sent, StorageError where it cannot be kept; all else comes
    by the future.
    """
    with contextlib.suppress(ValueError):  # of some that are not written in Python
        inspect.signature(task.function).bind(*args, **kwargs)  # TypeError, before a run is
    here = Context(dict(os.environ))
    given = dict(task.options)
    if on is not None:
        given["on"] = on
    version, memory = given.pop("cache", None), given.pop("memory", None)
    retries = given.pop("retries", 0)
    if not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries={retries!r} makes no sense", fix="retries=3 is three more tries")
    future: Future[Any] = Future()
    key = None
    if version is not None:
        try:
            key = cache.key(task.function, str(version), each, args, kwargs)
        except Exception:  # what cannot be pickled is to be named
            pickling.refuse_unpicklable(task.function, args, kwargs)
            raise
        with contextlib.suppress(KeyError):
            known = cache.read(here.home, key)
            return future.fill(lambda: known)
    with storage_errors(here.home):
        folder = _folder(here.home)
    try:
        job = task_job(given, folder, getattr(task.function, "__qualname__", ""))
        elsewhere = bool(job.on or job.hostfile or job.image or job.machines)
        call.write(
            folder, task.function, args, kwargs,
            workspace=Path(job.workdir), each=each, elsewhere=elsewhere, modules=by_value,
        )  # fmt: skip
        what = _Call(task, job, each, key, retries, _factor(memory, job))
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            with storage_errors(here.home):  # others are of the user's own folders
                raise
        raise

    def work() -> Any:
        try:
            return _to_the_end(here, what, future, show)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    if show is not None:
        return future.fill(work)
    _starting.add(future)
    # A daemon: the interpreter does not wait for it at its end, and the run goes on without it.
    threading.Thread(target=future.fill, args=(work,), daemon=True, name="shanty-call").start()
    return future


def _await_starts() -> None:
    """Wait at the interpreter's end for runs to begin: `train.submit()` may be a script's last."""
    for future in [*_starting]:
        future.await_begin()


# While there still are threads: an `atexit` comes too late. Those that were entered first, as of
# concurrent.futures, which is imported above, are called last.
threading._register_atexit(_await_starts)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_starting.clear)  # a child has none of the threads


def _folder(home: Path) -> Path:
    """Make a folder for a call, which the run copies; what others left behind is removed."""
    place = home / "cache" / "calls"
    place.mkdir(parents=True, exist_ok=True)
    here = hashlib.sha256(f"{os.uname().nodename} {platform.pid_namespace()}".encode()).hexdigest()
    for old in place.iterdir():
        with contextlib.suppress(OSError):  # somebody else was quicker
            where, _, owner = old.name.partition("-")
            pid, _, born = owner.rpartition("-")[0].partition("-")
            if where == here[:8] and pid.isdigit():
                given_up = not platform.is_alive(int(pid), born)
            else:
                given_up = old.stat().st_mtime < time.time() - _GIVEN_UP
            if given_up:
                shutil.rmtree(old, ignore_errors=True)
    owner = f"{os.getpid()}-{platform.born(os.getpid())}"
    return Path(tempfile.mkdtemp(dir=place, prefix=f"{here[:8]}-{owner}-"))


def _factor(memory: str | None, job: JobSpec) -> float:
    """Read memory="x2"."""
    if memory is None:
        return 1.0
    text = str(memory)
    try:
        factor = float(text.removeprefix("x"))
    except ValueError:
        factor = 0.0
    if not text.startswith("x") or not 1.0 < factor < 100.0:
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
    error: BaseException | None = None
    while True:
        if future.cancelled():
            raise CancelledError
        job = replace(job, retries=max(0, what.retries - used))
        waiting: _Waiting | None = None

        def began(run: Run) -> None:
            nonlocal waiting, job
            waiting = _Waiting(run, show)
            if job.inputs == what.job.inputs and run._folder.inputs.is_dir():
                # A copy, which does from now on.
                shutil.rmtree(str(job.inputs), ignore_errors=True)
                job = replace(job, inputs=str(run._folder.inputs))
            future.began(run)

        try:
            run = start_job(here, job, quiet=show is None, began=began)
            assert waiting is not None
            status = waiting.wait()
        except BaseException as refused:
            if waiting is not None:  # Ctrl-C and other signals, and what `show` raises
                waiting.end()
                raise
            if error is None or not isinstance(refused, ShantyError):
                raise
            error.add_note(f"there is no other attempt: {refused}")
            raise error from error.__cause__
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
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, RunError) and error.failure is not None:
                why = error.failure.what
            note(f"another attempt ({used} of {what.retries}): {why}")


class _Waiting:
    """Waits for a run, and passes its lines on to `show` where there is one."""

    def __init__(self, run: Run, show: Show | None) -> None:
        self._run = run
        self._show = show
        self._follower = None if show is None else Follower(run._folder, None, launcher=False)
        self._whole = WholeLines()

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for the end; TimeoutError after so many seconds."""
        status = self._run._until_end(self._pass_on, timeout, self._follower)
        if self._show is not None:
            self._show(self._run, self._whole.rest())
        return status

    def end(self) -> None:
        """Stop the run, and wait for its end; a second Ctrl-C kills it."""
        for grace in (None, 0.0):
            with contextlib.suppress(KeyboardInterrupt, Exception):
                self._run.stop(grace)
                self.wait(_LEAVING)
                return

    def _pass_on(self, records: Sequence[Line]) -> None:
        if self._show is not None:
            self._show(self._run, self._whole.of(records))


def printed(_run: Run, lines: Sequence[LogLine]) -> None:
    """Print whole lines with their ranks: sys.stdout may be a notebook's, which takes text only."""
    for line in lines:
        label = "" if line.rank is None else f"[{line.rank}] "
        file = sys.stderr if line.stream == "stderr" else sys.stdout
        text = label + line.text
        try:
            print(text, file=file, flush=True)
        except UnicodeEncodeError:  # of a terminal with letters of its own
            print(text.encode("ascii", "backslashreplace").decode(), file=file, flush=True)


def _value(here: Context, what: _Call, run: Run, status: Status) -> Any:
    results = RunDir(run.path, status.attempt)
    ranks = range(status.ranks or 1) if what.each else range(1)
    values = [_value_of(what.task, run, results, rank) for rank in ranks]
    if what.key is not None:
        cache.keep(here.home, what.key, results, len(ranks) if what.each else None)
    return values if what.each else values[0]


def _value_of(task: Task[..., Any], run: Run, results: RunDir, rank: int) -> Any:
    if not outcome.value_file(results, rank).exists():
        raise RunError(
            f"{task!r} has succeeded, but rank {rank} has left no value",
            run,
            why="its process ended before the function returned (os._exit?), or the run was "
            "deleted",
            log=str(results.rank_log(rank)),
        )
    try:
        return outcome.read_value(results, rank)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # whatever an object raises when it is made
        raise RunError(
            f"the value that {task!r} has returned cannot be read here",
            run,
            why=f"{type(error).__name__}: {error}",
            fix="install here what it is made of, or return plain data",
        ) from error


def _error(run: Run, status: Status) -> BaseException:
    """Return what the rank that failed first raised, else a RunError."""
    failure = status.failure
    if failure is not None and failure.rank is not None and status.state is State.FAILED:
        place = f"rank {failure.rank} on {failure.host}"
        results = RunDir(run.path, status.attempt)
        error = outcome.read_error(results, failure.rank, place)
        if error is not None:
            error.add_note(f"run {run.id}, {place}; its log: {failure.log or run.path / 'logs'}")
            return error
    return run._error(status)


def _cause(status: Status, error: BaseException) -> str:
    if status.state is State.STOPPED:
        return ""
    if type(error).__name__ in _MEMORY_ERRORS:
        return MEMORY
    return status.failure.cause if status.failure else ""
