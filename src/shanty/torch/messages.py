"""Messages under way: what sends and receives have begun, looked at until it is complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shanty.torch.work import CommunicationError, Complete, MPIWork

if TYPE_CHECKING:
    from shanty.torch.rollcall import Inquiry

_EAGER = 0.002  # seconds after the last event during which a look follows on the other
_PAUSE, _LONGEST_PAUSE = 0.0001, 0.001  # seconds between looks after that

Ended = Callable[[MPIWork, CommunicationError | None, int], None]
"""Takes a work that has ended, its error, and the rank that a message came from (or -1)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A message under way: MPI's request, and what to do once it is complete.

    members: the ranks of the world that it waits for.
    """

    request: Any  # mpi4py.MPI.Request; this module must not import MPI, which would start it
    memory: torch.Tensor  # must live until then
    complete: Complete
    members: tuple[int, ...] = ()


class Messages:
    """The messages of all groups that are under way. For the communication thread.

    ended: is called for each that has ended, and runs its callbacks.
    """

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self.under_way: list[MPIWork] = []
        self.abandoned: list[Pending] = []  # for MPI may write to their memory for ever
        self._inquiry: tuple[MPIWork, Inquiry] | None = None

    def add(self, work: MPIWork) -> None:
        """One more; its `pending` says what was begun."""
        self.under_way.append(work)

    def poll(self) -> bool:
        """Look at each; whether one has ended."""
        looked = [(work, self.outcome(work)) for work in self.under_way]
        ended = [(work, outcome) for work, outcome in looked if outcome is not None]
        for work, _ in ended:
            self.under_way.remove(work)
        for work, outcome in ended:  # last: their callbacks may start operations
            self._ended(work, *outcome)
        return bool(ended)

    def outcome(self, work: MPIWork) -> tuple[CommunicationError | None, int] | None:
        """How a message ended: its error and its source; None while it is under way."""
        message = work.pending
        assert message is not None
        try:
            if not message.request.Test(None):
                return None
        except Exception as cause:  # noqa: BLE001 (whatever it is, wait() raises it)
            self.abandoned.append(message)  # others of its pieces may still be under way
            return work.failure(cause), -1
        try:
            with writing():
                return None, message.complete(None)
        except Exception as cause:  # noqa: BLE001 (likewise)
            return work.failure(cause), -1

    def abandon(self, work: MPIWork, error: CommunicationError) -> None:
        """End one with an error, and keep its memory, since MPI cannot take it back."""
        self.under_way.remove(work)
        assert work.pending is not None
        self.abandoned.append(work.pending)
        self._ended(work, error, -1)

    def see_through(self, group: object, seconds: float) -> bool:
        """Wait for those of a group, or of all groups (None), and give up what has not ended then;
        whether there was nothing to give up.
        """
        end = time.monotonic() + seconds
        while (left := self._of(group)) and time.monotonic() < end:
            if not self.poll():
                time.sleep(_PAUSE)
        for work in left:
            text = f"{work.what}: given up when its group was destroyed."
            self.abandon(work, CommunicationError(text))
        return not left

    def inquire(self, waiter: MPIWork | None) -> CommunicationError | None:
        """Give up what the main thread waits for, where it is certain that it cannot come; the
        error then. To be asked again and again: it takes its time.
        """
        if waiter is None or waiter not in self.under_way:
            self._inquiry = None
            return None
        if self._inquiry is None or self._inquiry[0] is not waiter:
            assert waiter.inquiry is not None
            self._inquiry = waiter, waiter.inquiry()
        answers = self._inquiry[1].verdict()
        if answers is None or self.poll():
            return None
        lines = [f"  rank {rank} {state.text}" for rank, state in sorted(answers.items())]
        error = CommunicationError(f"{waiter.what} can never complete:\n" + "\n".join(lines))
        self.abandon(waiter, error)
        return error

    def _of(self, group: object) -> list[MPIWork]:
        return [work for work in self.under_way if group is None or work.place is group]


def pause(idle: float) -> float:
    """Seconds between two looks, so long after the last event."""
    return 0.0 if idle < _EAGER else max(_PAUSE, min(_LONGEST_PAUSE, idle * 0.05))


def writing() -> AbstractContextManager[object]:
    """A context in which results may be written, into leaves that need gradients and into
    inference tensors too. Callbacks must not run in it.
    """
    return _inference(True)


# What torch.inference_mode enters, without its two microseconds.
_inference = getattr(torch._C, "_InferenceMode", torch.inference_mode)
