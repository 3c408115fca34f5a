"""Sends and receives, each under way as a `Message`. Importing this starts MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi4py import MPI

from shanty.collectives import handshake, kernels
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Tensor, elements, word

_LABEL = 24  # bytes with the name of a dtype


def send(at: Channel, tensor: Tensor, to: int, tag: int) -> Message:
    """Begin to send; complete when the tensor may be written to again."""
    source = at.kernels.readable(tensor)
    requests = [
        at.comm.Isend(at.kernels.spec(piece), to, tag) for piece in at.kernels.pieces(source)
    ]
    if handshake.CHECKED:
        requests.append(at.apart.Isend(_label(at, source), to, tag + 1))
    return Message(requests, source, lambda _: at.rank)


def receive(at: Channel, tensor: Tensor, source: int, tag: int) -> Message:
    """Begin to receive into the tensor. A message of another length is an error, with
    SHANTY_CHECK=1 one of another dtype too.

    Raises ValueError where it comes from any source in several pieces: they could get mixed up.
    """
    room, label = at.kernels.writable(tensor), bytearray(_LABEL)
    if source == MPI.ANY_SOURCE and room.nbytes > kernels.LARGEST:
        text = f"recv of {room.nbytes} bytes from any source: name the source instead."
        raise ValueError(text)

    def complete(all_statuses: Sequence[MPI.Status]) -> int:
        statuses = all_statuses[: len(at.kernels.pieces(room))]
        came = sum(status.Get_count(word(room.dtype)) for status in statuses)
        sender = statuses[0].source
        known = any(label)
        if came != elements(room) or (known and label != _label(at, room)):
            asked, sent = (
                f" of {_name(each)}" if known else "" for each in (_label(at, room), label)
            )
            raise at.errors.failed(
                f"recv of {elements(room)} elements{asked}: rank {sender} sent {came}{sent} "
                f"(tag {tag})."
            )
        at.kernels.settle(room, tensor)
        return sender

    if source == MPI.ANY_SOURCE:
        return _Next(at, room, tag, label, complete)
    pieces = at.kernels.pieces(room)
    requests = [at.comm.Irecv(at.kernels.spec(piece), source, tag) for piece in pieces]
    return Message([*requests, *_label_to_come(at, source, tag, label)], room, complete)


Complete = Callable[[Sequence[MPI.Status]], int]


class Message:
    """One message under way, in pieces.

    memory: must live until its end. complete: to be called then, with the pieces' statuses (the
    label's is the last); returns the source rank or raises.
    """

    def __init__(self, requests: list[MPI.Request], memory: Tensor, complete: Complete) -> None:
        self.memory, self.complete = memory, complete
        self.statuses = [MPI.Status() for _ in requests]
        self._left = list(zip(requests, self.statuses, strict=True))

    def has_ended(self) -> bool:
        """Return true once all pieces have come, or gone."""
        while self._left:
            request, status = self._left[-1]  # the label first, which comes in any case
            if not request.Test(status):
                return False
            self._left.pop()
        return True


class _Next(Message):
    """The next message with a tag, from whomever.

    It is looked for before it is received: MPICH now and then never completes a receive from any
    source that was begun before the message came over a network.
    """

    def __init__(
        self, at: Channel, room: Tensor, tag: int, label: bytearray, complete: Complete
    ) -> None:
        super().__init__([], room, complete)
        self._at, self._tag, self._label = at, tag, label

    def has_ended(self) -> bool:
        """Return true once it has come."""
        if not self.statuses:
            status = MPI.Status()
            message = self._at.comm.Improbe(MPI.ANY_SOURCE, self._tag, status)
            if message is None:
                return False
            labels = _label_to_come(self._at, status.source, self._tag, self._label)
            received = message.Irecv(self._at.kernels.spec(self.memory))
            super().__init__([received, *labels], self.memory, self.complete)
        return super().has_ended()


def _label(at: Channel, tensor: Tensor) -> bytes:
    """Return what goes beside a message with SHANTY_CHECK=1: its dtype, by name."""
    name: str = at.kernels.kind(tensor.dtype)
    return name.encode().ljust(_LABEL, b"\0")


def _name(label: bytes | bytearray) -> str:
    return label.rstrip(b"\0").decode()


def _label_to_come(at: Channel, source: int, tag: int, label: bytearray) -> list[MPI.Request]:
    return [at.apart.Irecv(label, source, tag + 1)] if handshake.CHECKED else []
