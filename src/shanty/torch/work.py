"""`MPIWork`: torch's handle of one operation on MPI, its errors, and the communication thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from shanty.collectives import errors as base
from shanty.collectives.operation import Operation
from shanty.collectives.worker import Worker, Writing


class CommunicationError(base.CommunicationError, dist.DistBackendError):
    """An operation of the `mpi` backend failed; says which, in which group, on which rank."""


class CommunicationTimeoutError(CommunicationError, base.CommunicationTimeoutError):
    """A wait ran past its time limit. The operation itself may still be under way."""


class MismatchError(CommunicationError, base.MismatchError):
    """The ranks of a group called different things at the same point. Raised on all of them,
    before anything was communicated; the group can be used again.
    """


ERRORS = base.Errors(CommunicationError, CommunicationTimeoutError, MismatchError)

# Guards the making of futures; held for a few instructions only.
_futures = threading.Lock()


class _Work(dist.Work):
    def synchronize(self) -> None:
        """Do the same as `wait`: for tensors in host memory there is no stream to order against."""
        self.wait()

    block_current_stream = synchronize


class MPIWork(Operation, _Work):
    """One operation given to the communication thread.

    A failed operation is never a success: `wait` raises, `is_success` is false, `exception`
    returns the error, and the future fails, for Python and for DDP's C++ alike.
    """

    errors = ERRORS
    _future: Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is complete; true, or the operation's error.

        timeout: None, zero or less mean the limit of the group (`init_process_group(timeout=)`).
        Raises CommunicationTimeoutError when the limit passes. MPI cannot take an operation
        back: a collective then blocks what comes after it, and the run has to end.
        """
        if not self.done or self._error is not None:
            self.wait_for(timeout.total_seconds() if timeout is not None else 0.0)
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has ended, in success or failure."""
        return self.done

    def is_success(self) -> bool:
        """Return whether the operation has ended without error."""
        return self.done and self._error is None

    def exception(self) -> base.CommunicationError | None:
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
        in which operations complete; what they start there runs at once (see `Worker.submit`).
        """
        with _futures:
            if self._future is not None:
                return self._future
            # Future.set_exception stores the exception as a VALUE, which C++ takes for success.
            # Raising in a callback is the one way to a future that failed.
            devices = {each.device for each in self.tensors if each.is_cuda}
            arrival: Future[None] = Future(devices=list(devices)) if devices else Future()
            self._future = arrival.then(lambda _: self.result())
        self.when_done(lambda: arrival.set_result(None))
        return self._future

    def source_rank(self) -> int:
        """Return the rank (of the group) that a receive took its message from."""
        return self._source

    _source_rank = source_rank


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

    def exception(self) -> base.CommunicationError | None:
        """Return the error of the first that failed."""
        return next((work.exception() for work in self._works if work.exception()), None)

    def result(self) -> list[Tensor]:
        """Return what all of them wrote."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of `result`."""
        every = collect_all([work.get_future() for work in self._works])
        return every.then(lambda _: self.result())


# What torch.inference_mode enters, without its two microseconds.
writing: Writing = partial(getattr(torch._C, "_InferenceMode", torch.inference_mode), True)
"""Returns a context in which results may be written, into leaves that need gradients and into
inference tensors too. Callbacks must not run in it.
"""

WORKER = Worker("shanty.torch", writing)
"""The one communication thread of this process."""
