"""`MPIWork`: one operation given to the communication thread, as torch's handle of it; its errors.

Importing this starts no MPI.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from shanty.collectives import errors as base

if TYPE_CHECKING:
    from shanty.collectives.handshake import Handshake
    from shanty.collectives.watchdog import Inquiry
    from shanty.torch.messages import Message


class CommunicationError(base.CommunicationError, dist.DistBackendError):
    """An operation of the `mpi` backend failed; says which, in which group, on which rank."""


class CommunicationTimeoutError(CommunicationError, base.CommunicationTimeoutError):
    """A wait ran past its time limit. The operation itself may still be under way."""


class MismatchError(CommunicationError, base.MismatchError):
    """The ranks of a group called different things at the same point. Raised on all of them,
    before anything was communicated; the group can be used again.
    """


ERRORS = base.Errors(CommunicationError, CommunicationTimeoutError, MismatchError)

# What torch.inference_mode enters, without its two microseconds.
writing: Callable[[], AbstractContextManager[object]] = partial(
    getattr(torch._C, "_InferenceMode", torch.inference_mode), True
)
"""Returns a context in which results may be written, into leaves that need gradients and into
inference tensors too. Callbacks must not run in it.
"""


Body = Callable[[], "Message | None"]

_LOST = ("MPI_ERR_PROC_FAILED", "MPI_ERR_REVOKED")
_ADVICE = (
    "a rank was lost. `shanty.torch.elastic.ddp(model)` lets training go on after a loss in "
    "backward(), all_reduce, broadcast and barrier; --retries starts a run again after any other"
)

_ending = threading.Lock()  # between an end and `when_done`; held for a few instructions only
_futures = threading.Lock()  # around the making of futures; likewise


class _Work(dist.Work):
    def synchronize(self) -> None:
        """Do the same as `wait`: tensors in host memory have no stream to order against."""
        self.wait()

    block_current_stream = synchronize


class MPIWork(_Work):
    """One operation given to the communication thread.

    A failed operation is never a success: `wait` raises, `is_success` is false, `exception`
    returns the error, and the future fails, for Python and for DDP's C++ alike.

    waits: waits for its end so many seconds, or as `limit` says for zero; raises if it is late.
    call, place: the operation and its group, whose text is wanted for messages only.
    handshake: of its ranks, before `body`; None for an operation that needs no others to begin.
    missing: describes what the ranks it waits for are doing, when a wait runs out.
    inquiry: begins to ask whether they can still come.
    body: run by the communication thread; None after that, so that it keeps no tensor alive.
    message: what it has begun, while that is under way.
    ready: returns when the tensors may be read; None where they may be at once.
    queued: whether it went through the communication thread's queue.
    tensors: the results.
    limit: seconds that a wait lasts when its caller names no time limit.
    done: whether it has ended, in success or failure.
    """

    missing: Callable[[], str] | None = None
    inquiry: Callable[[], Inquiry] | None = None
    message: Message | None = None
    ready: Callable[[], None] | None = None
    queued = False
    _callback: Callable[[], None] | None = None
    _future: Future[list[Tensor]] | None = None

    def __init__(
        self,
        waits: Callable[[MPIWork, float], None],
        call: object,
        place: object,
        body: Body,
        tensors: list[Any],
        limit: float,
        *,
        handshake: Handshake | None = None,
    ) -> None:
        super().__init__()
        self.handshake = handshake
        self.limit = limit
        self._call = call
        self.place = place
        self.body: Body | None = body
        self._waits = waits
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

    # ---- for torch -------------------------------------------------------------------------

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is complete; true, or the operation's error.

        timeout: None, zero or less mean the limit of the group (`init_process_group(timeout=)`).
        Raises CommunicationTimeoutError when the limit passes. MPI cannot take an operation
        back: a collective then blocks what comes after it, and the run has to end.
        """
        if not self.done:
            self._waits(self, timeout.total_seconds() if timeout is not None else 0.0)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has ended, in success or failure."""
        return self.done

    def is_success(self) -> bool:
        """Return whether the operation has ended without error."""
        return self.done and self._error is None

    def exception(self) -> CommunicationError | None:
        """Return the error of a failed operation; None while it runs and after success."""
        return self._error

    def result(self) -> list[Tensor]:
        """Return the tensors that it wrote. Raises its error, or when it is not complete."""
        if not self.done:
            raise RuntimeError(f"{self.what}: not complete yet; call wait() before result().")
        if self._error is not None:
            raise self._error
        return self.tensors

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of `result`. Its callbacks run on the communication thread, in the order
        in which operations complete; what they start there runs at once (see
        `BackgroundThread.submit`).
        """
        with _futures:
            if self._future is not None:
                return self._future
            # Future.set_exception stores the exception as a VALUE, which C++ takes for success.
            # Raising in a callback is the one way to a future that failed.
            devices = {each.device for each in self.tensors if each.is_cuda}
            arrival: Future[None] = Future(devices=list(devices)) if devices else Future()
            self._future = arrival.then(lambda _: self.result())
        self._when_done(lambda: arrival.set_result(None))
        return self._future

    def source_rank(self) -> int:
        """Return the rank (of the group) that a receive took its message from."""
        return self._source

    _source_rank = source_rank

    # ---- for the thread --------------------------------------------------------------------

    def failure(self, cause: BaseException) -> CommunicationError:
        """Return `cause` as an error of this operation; itself, if it is one of an operation."""
        if isinstance(cause, CommunicationError):
            return cause
        text = str(cause) or type(cause).__name__
        if text.startswith(_LOST):
            text = f"{_ADVICE} ({text.partition(':')[0]})"
        error = CommunicationError(f"{self.what} failed: {text}")
        error.__cause__ = cause
        return error

    def finish(self, error: CommunicationError | None = None, source: int = -1) -> None:
        """Mark as ended, wake the waiters, run the callback (on the calling thread)."""
        self.body = self.message = self.ready = None
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

    def _when_done(self, callback: Callable[[], None]) -> None:
        """Have `callback`, the only one, called at its end: at once if it has ended."""
        with _ending:
            if not self.done:
                self._callback = callback
                return
        callback()


class CoalescedWork(_Work):
    """Several operations as one: complete when all are, failed when one is."""

    def __init__(self, works: Sequence[MPIWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are complete; raises the first error. timeout: of each of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all have ended without error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> CommunicationError | None:
        """Return the error of the first that failed."""
        return next((work.exception() for work in self._works if work.exception()), None)

    def result(self) -> list[Tensor]:
        """Return what all of them wrote."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of `result`."""
        every = collect_all([work.get_future() for work in self._works])
        return every.then(lambda _: self.result())
