"""The handle of one operation: `MPIWork`, and the errors with which it can end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

if TYPE_CHECKING:
    from shanty.torch.meeting import Meeting
    from shanty.torch.messages import Pending
    from shanty.torch.rollcall import Inquiry
    from shanty.torch.worker import Body, Worker

_GRACE = 5.0  # seconds past the limit in which the communication thread says who is missing


class CommunicationError(dist.DistBackendError):
    """An operation of the `mpi` backend failed; says which, in which group, on which rank."""


class CommunicationTimeoutError(CommunicationError, TimeoutError):
    """A wait ran past its time limit. The operation itself may still be under way."""


class MismatchError(CommunicationError, ValueError):
    """The ranks of a group called different things at the same point. Raised on all of them,
    before anything was communicated; the group can be used again.
    """


# Guards the hand-over between completion and `get_future`; held for a few instructions only.
_futures = threading.Lock()


class MPIWork(dist.Work):
    """One operation given to the communication thread.

    A failed operation is never a success: `wait` raises, `is_success` is false, `exception`
    returns the error, and the future fails, for Python and for DDP's C++ alike.

    call, place: the operation and its group, whose text is wanted for messages only.
    meeting: where the ranks come together before `body`; None for what needs no others to begin.
    missing: says in words what the ranks it waits for are doing, when a wait runs out.
    inquiry: begins to ask whether they can still come.
    body: what the communication thread runs; None once it ran, so that it keeps no tensor alive.
    pending: what it has begun, while that is under way.
    ready: returns when the tensors may be read; None where they may be at once.
    queued: whether it went through the communication thread's queue.
    tensors: what `result` returns after success.
    limit: seconds that `wait` allows when its caller names no time limit.
    """

    missing: Callable[[], str] | None = None
    inquiry: Callable[[], Inquiry] | None = None
    pending: Pending | None = None
    ready: Callable[[], None] | None = None
    queued = False

    def __init__(
        self,
        worker: Worker,
        call: object,
        place: object,
        body: Body,
        tensors: list[Tensor],
        limit: float,
        *,
        meeting: Meeting | None = None,
    ) -> None:
        super().__init__()
        self.meeting = meeting
        self.limit = limit
        self._call = call
        self.place = place
        self.body: Body | None = body
        self._worker = worker
        self.tensors = tensors
        self._source = -1
        self._done = False
        self._error: CommunicationError | None = None
        self._gate = threading.Lock()  # a bare lock: the cheapest thing to wait on with a limit
        self._gate.acquire()
        self._arrival: Future[None] | None = None
        self._future: Future[list[Tensor]] | None = None

    # ---- what torch and users call ---------------------------------------------------------

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is complete; true, or the operation's error.

        timeout: None, zero or less mean the limit of the group (`init_process_group(timeout=)`).
        Raises CommunicationTimeoutError when the limit passes. MPI cannot take an operation
        back: a collective then blocks what comes after it, and the run has to end.
        """
        if not self._done:
            asked = timeout.total_seconds() if timeout is not None else 0.0
            self._await(asked)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait`: for tensors in host memory there is no stream to order against."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, in success or failure."""
        return self._done

    def is_success(self) -> bool:
        """Whether the operation has ended without error."""
        return self._done and self._error is None

    def exception(self) -> CommunicationError | None:
        """The error of a failed operation; None while it runs and after success."""
        return self._error

    def result(self) -> list[Tensor]:
        """The tensors that the operation wrote. Raises its error, or when it is not complete."""
        if not self._done:
            raise RuntimeError(f"{self.what}: not complete yet; call wait() before result().")
        if self._error is not None:
            raise self._error
        return self.tensors

    def get_future(self) -> Future[list[Tensor]]:
        """A future of `result`. Its callbacks run on the communication thread, in the order in
        which operations complete; what they start there runs at once (see `Worker.submit`).
        """
        with _futures:
            if self._future is None:
                # Future.set_exception stores the exception as a VALUE, which C++ takes for
                # success. Raising in a callback is the one way to a future that failed.
                devices = {each.device for each in self.tensors if each.is_cuda}
                self._arrival = Future(devices=list(devices)) if devices else Future()
                self._future = self._arrival.then(lambda _: self.result())
                complete = self._done
            else:
                complete = False
        if complete and self._arrival is not None:
            self._arrival.set_result(None)
        return self._future

    def source_rank(self) -> int:
        """The rank (of the group) that a receive took its message from."""
        return self._source

    _source_rank = source_rank

    @property
    def what(self) -> str:
        """The operation in words: "all_reduce on group 0, rank 1 of 2"."""
        return f"{self._call} on {self.place}"

    def __str__(self) -> str:
        group = str(self.place).partition(",")[0]
        return f"{self.meeting or self._call} on {group}"

    # ---- what the worker calls -------------------------------------------------------------

    def failure(self, cause: BaseException) -> CommunicationError:
        """`cause` as an error of this operation; itself, if it is one of an operation."""
        if isinstance(cause, CommunicationError):
            return cause
        error = CommunicationError(f"{self.what} failed: {str(cause) or type(cause).__name__}")
        error.__cause__ = cause
        return error

    def finish(self, error: CommunicationError | None = None, source: int = -1) -> None:
        """Mark as ended, wake the waiters, run the callbacks (on the calling thread)."""
        self.body = self.pending = self.ready = None
        self._error = error
        self._source = source
        with _futures:
            self._done = True
            arrival = self._arrival
        self._gate.release()
        if arrival is not None:
            arrival.set_result(None)

    def join(self, seconds: float) -> bool:
        """Wait without raising; whether the operation has ended."""
        if self._done:
            return True
        if not self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            return self._done
        self._gate.release()  # the next waiter's turn
        return True

    def _await(self, asked: float) -> None:
        seconds = asked if asked > 0 else self.limit
        # The communication thread keeps the limit of a collective itself, and knows who is missing.
        grace = _GRACE if asked <= 0 and self.meeting is not None else 0.0
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
        if not self._done:
            missing = f"\n{self.missing()}" if self.missing is not None else ""
            raise CommunicationTimeoutError(
                f"{self.what} was not complete after {seconds:g} s. Most often another rank "
                "failed, left its loop early, or called something else at this point. "
                f"Look at where every rank is (`shanty stacks RUN`), and end the run.{missing}"
            )


class CoalescedWork(dist.Work):
    """Several operations as one: complete when all are, failed when one is."""

    def __init__(self, works: Sequence[MPIWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are complete; raises the first error. timeout: of each of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended without error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> CommunicationError | None:
        """The error of the first that failed."""
        return next((work.exception() for work in self._works if work.exception()), None)

    def result(self) -> list[Tensor]:
        """What all of them wrote."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Future[list[Tensor]]:
        """A future of `result`."""
        every = collect_all([work.get_future() for work in self._works])
        return every.then(lambda _: self.result())


Complete = Callable[[Any], int]
"""Ends a point-to-point operation: takes its MPI.Status, returns the source rank or raises."""
