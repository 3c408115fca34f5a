"""A value that will be there when a run has ended."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shanty.tasks.errors import of_a_rank, without_our_frames

if TYPE_CHECKING:
    from shanty.client.runs import Run

R = TypeVar("R")
_LEAVING = 20.0  # seconds for a run to end after Ctrl-C


class CancelledError(concurrent.futures.CancelledError):
    """The call was cancelled, and its run stopped."""


class Future(Generic[R]):
    """What a task's `submit` returns. It can be awaited."""

    def __init__(self) -> None:
        self._inner: concurrent.futures.Future[R] = concurrent.futures.Future()
        # Or asyncio would take a wait that is cancelled for the call's end, and not stop the run.
        self._inner.set_running_or_notify_cancel()
        self._runs: list[Run] = []
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._cancelled = False

    @property
    def run(self) -> Run | None:
        """Its run, the newest of several attempts, once it is there. Ctrl-C stops it.

        None for a value from the cache, and where none could be started.
        """
        with self._stopped_by_interrupts():
            self._begun.wait()
        return self._runs[-1] if self._runs else None

    def result(self, timeout: float | None = None) -> R:
        """Wait for the value, or raise what the function raised.

        timeout: seconds, after which TimeoutError is raised and the run goes on. Ctrl-C stops it.
        CancelledError where it was cancelled.
        """
        error = self.exception(timeout)
        if error is not None:
            raise without_our_frames(error)
        return self._inner.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the function raised, None where it returned."""
        with self._stopped_by_interrupts():
            return self._inner.exception(timeout)

    @contextlib.contextmanager
    def _stopped_by_interrupts(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.cancel()
            with contextlib.suppress(Exception):
                self._inner.exception(_LEAVING)
            raise

    def done(self) -> bool:
        """Return whether the value, or an exception, is there."""
        return self._inner.done()

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._cancelled

    def cancel(self) -> bool:
        """Stop its run; False where it has ended. `result` raises CancelledError from then on."""
        with self._lock:
            if self._inner.done():
                return False
            self._cancelled = True
            running = self._runs[-1:]
        for run in running:
            run.stop()
        return True

    def __await__(self) -> Generator[Any, None, R]:
        return self._wait().__await__()

    async def _wait(self) -> R:
        import asyncio  # a fifth of the time of the first call; a caller that awaits has it

        # What the function raised does not go through asyncio, which loses a StopIteration.
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()
        self._inner.add_done_callback(lambda _: ended.set_result(None))
        try:
            await asyncio.wrap_future(ended)
        except asyncio.CancelledError:
            await asyncio.get_running_loop().run_in_executor(None, self.cancel)
            raise
        return self.result()

    # ------------------------------------------------------------------ for the caller's thread

    def began(self, run: Run) -> None:
        """Say that a run of it has begun; stops it where it was cancelled meanwhile."""
        with self._lock:
            self._runs.append(run)
            cancelled = self._cancelled
        try:
            if cancelled:
                run.stop()
        finally:
            self._begun.set()  # last: the interpreter's end waits for it

    def fill(self, work: Callable[[], R]) -> Future[R]:
        """Do the work, here and now, and keep what comes of it; Ctrl-C comes out of it as well."""
        try:
            value = work()
        except BaseException as error:
            with self._lock:
                if self._cancelled and not isinstance(error, KeyboardInterrupt):
                    error = CancelledError("the call was cancelled")
                self._inner.set_exception(without_our_frames(error))
            if isinstance(error, KeyboardInterrupt) and not of_a_rank(error):
                raise
        else:
            with self._lock:
                if self._cancelled:  # the caller of `cancel` was promised this
                    self._inner.set_exception(CancelledError("the call was cancelled"))
                else:
                    self._inner.set_result(value)
        finally:
            self._begun.set()
        return self

    def await_begin(self) -> None:
        """Wait until a run has begun, or none will."""
        self._begun.wait()
