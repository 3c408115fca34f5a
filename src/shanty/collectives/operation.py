"""`Operation`: one operation given to the communication thread, and its end. Starts no MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from shanty.collectives.errors import CommunicationError, Errors

if TYPE_CHECKING:
    from shanty.collectives.handshake import Handshake
    from shanty.collectives.watchdog import Inquiry

_GRACE = 5.0  # seconds past the limit in which the communication thread says who is missing

Complete = Callable[[Any], int]
"""Ends a point-to-point operation: takes its MPI.Status, returns the source rank or raises."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A message under way: MPI's request, and what to do once it is complete.

    memory: must live until then. members: the ranks of the world that it waits for.
    """

    request: Any  # mpi4py.MPI.Request; this module must not import MPI, which would start it
    memory: Any
    complete: Complete
    members: tuple[int, ...] = ()


Body = Callable[[], Pending | None]


class Runner(Protocol):
    """The communication thread, as an operation knows it.

    waiter: the operation that the main thread waits for. overdue: one that a wait gave up on.
    """

    waiter: Operation | None
    overdue: Operation | None

    def is_current(self) -> bool:
        """Return true on the communication thread."""

    def complete(self, operation: Operation, seconds: float) -> None:
        """Wait for an operation on that thread itself."""


_ending = threading.Lock()  # between an end and `when_done`; held for a few instructions only


class Operation:
    """One operation for the communication thread, and its handle.

    call, place: the operation and its group, whose text is wanted for messages only.
    handshake: of its ranks, before `body`; None for what needs no others to begin.
    missing: says in words what the ranks it waits for are doing, when a wait runs out.
    inquiry: begins to ask whether they can still come.
    body: run by the communication thread; None after that, so that it keeps no tensor alive.
    pending: the message that it has begun, while that is under way.
    ready: returns when the tensors may be read; None where they may be at once.
    queued: whether it went through the communication thread's queue.
    tensors: the results.
    limit: seconds that a wait lasts when its caller names no time limit.
    done: whether it has ended, in success or failure.
    """

    errors: ClassVar[Errors] = Errors()
    missing: Callable[[], str] | None = None
    inquiry: Callable[[], Inquiry] | None = None
    pending: Pending | None = None
    ready: Callable[[], None] | None = None
    queued = False
    _callback: Callable[[], None] | None = None

    def __init__(
        self,
        worker: Runner,
        call: object,
        place: object,
        body: Body,
        tensors: list[Any],
        limit: float,
        *,
        handshake: Handshake | None = None,
    ) -> None:
        super().__init__()  # a front end's handle may have another base
        self.handshake = handshake
        self.limit = limit
        self._call = call
        self.place = place
        self.body: Body | None = body
        self._worker = worker
        self.tensors = tensors
        self._source = -1
        self.done = False
        self._error: CommunicationError | None = None
        self._gate = threading.Lock()  # a bare lock: the cheapest thing to wait on with a limit
        self._gate.acquire()

    @property
    def what(self) -> str:
        """The operation in words: "all_reduce on group 0, rank 1 of 2"."""
        return f"{self._call} on {self.place}"

    def __str__(self) -> str:
        group = str(self.place).partition(",")[0]
        return f"{self.handshake or self._call} on {group}"

    def wait_for(self, seconds: float = 0.0) -> None:
        """Block until it has ended; raises its error. seconds: zero or less mean its limit."""
        if not self.done:
            self._await(seconds)
        if self._error is not None:
            raise self._error

    def when_done(self, callback: Callable[[], None]) -> None:
        """Have `callback`, the only one, called at its end: at once if it has ended."""
        with _ending:
            if not self.done:
                self._callback = callback
                return
        callback()

    # ---- for the worker --------------------------------------------------------------------

    def failure(self, cause: BaseException) -> CommunicationError:
        """Return `cause` as an error of this operation; itself, if it is one of an operation."""
        if isinstance(cause, self.errors.failed):
            return cause
        error = self.errors.failed(f"{self.what} failed: {str(cause) or type(cause).__name__}")
        error.__cause__ = cause
        return error

    def finish(self, error: CommunicationError | None = None, source: int = -1) -> None:
        """Mark as ended, wake the waiters, run the callback (on the calling thread)."""
        self.body = self.pending = self.ready = None
        self._error = error
        self._source = source
        with _ending:
            self.done = True
            callback = self._callback
        self._gate.release()
        if callback is not None:
            callback()

    def join(self, seconds: float) -> bool:
        """Wait without raising; returns whether the operation has ended."""
        if self.done:
            return True
        if not self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            return self.done
        self._gate.release()  # the next waiter's turn
        return True

    def _await(self, asked: float) -> None:
        seconds = asked if asked > 0 else self.limit
        # The communication thread keeps the limit of a collective itself, and knows who is missing.
        grace = _GRACE if asked <= 0 and self.handshake is not None else 0.0
        worker = self._worker
        if worker.is_current():
            worker.complete(self, seconds)
        else:
            is_main = threading.current_thread() is threading.main_thread()
            in_time = False
            if is_main:
                worker.waiter = self
            try:
                in_time = self.join(seconds + grace)
            finally:
                if is_main:
                    worker.waiter = None
                if not in_time and self.body is not None:  # interrupted counts as given up, too
                    worker.overdue = self
        if not self.done:
            missing = f"\n{self.missing()}" if self.missing is not None else ""
            raise self.errors.late(
                f"{self.what} was not complete after {seconds:g} s. Most often another rank "
                "failed, left its loop early, or called something else at this point. "
                f"Look at where every rank is (`shanty stacks RUN`), and end the run.{missing}"
            )
