"""Tells the other ranks that this one has left a training, in which they would wait for it."""

from __future__ import annotations

import time
from socket import gethostname
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

_GRACE = 3  # seconds within which all ranks leave that leave for the same reason
_NAP = 0.01
_TOLD = "shanty_has_told_the_other_ranks"
_TAG = 5  # of these messages; the communicator's other messages have others


class Departures:
    """Messages between the ranks of a communicator, beside what else they exchange over it.

    comm: None where a rank is alone.
    """

    def __init__(self, comm: MPI.Intracomm | None) -> None:
        self._comm = comm
        self._left: dict[int, str] = {}  # ranks that have left, and why
        self._final = False  # one of them does not go on with the others
        self._sent: list[Any] = []  # MPI needs their memory

    def leave(self, error: Exception) -> bool:
        """Tells the others that this rank has left the training, because of an error.

        Returns whether all of them leave it too, within seconds: a mistake that all ranks make.
        They can then go on together.
        """
        if self._comm is None:
            return True
        if hasattr(error, _TOLD):  # it passes through calls within each other
            return bool(getattr(error, _TOLD))
        together = self._leave(error)
        setattr(error, _TOLD, together)
        return together

    def _leave(self, error: Exception) -> bool:
        assert self._comm is not None
        rank, size = self._comm.rank, self._comm.size
        reason = str(error).partition("\nStack trace")[0].strip().partition("\n")[0]
        why = f"rank {rank} on {gethostname()} left the training with {type(error).__name__}"
        why = f"{why}: {reason}" if reason else why
        self._send(why, False)
        deadline = time.monotonic() + _GRACE
        while not self.reason() or len(self._left) < size - 1:
            if time.monotonic() > deadline or self._final:
                self._send(why, True)  # for a rank that leaves later
                return False
            time.sleep(_NAP)
        self._left.clear()
        return not self._final

    def reason(self) -> str:
        """Why a rank has left the training; empty where none has."""
        from mpi4py import MPI

        status = MPI.Status()
        while self._comm is not None and self._comm.iprobe(tag=_TAG, status=status):
            why, final = self._comm.recv(source=status.Get_source(), tag=_TAG)
            self._left.setdefault(status.Get_source(), why)
            self._final = self._final or final
        return next(iter(self._left.values()), "")

    def wait(self, seconds: float) -> str:
        """Waits for a reason; returns it, or nothing after so many seconds."""
        deadline = time.monotonic() + seconds
        while not (found := self.reason()) and time.monotonic() < deadline:
            time.sleep(_NAP)
        return found

    def _send(self, why: str, final: bool) -> None:
        assert self._comm is not None
        others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
        self._sent += [self._comm.isend((why, final), rank, _TAG) for rank in others]
