"""Sends and receives, each under way as a `messages.Pending`. Importing this module starts MPI."""

from __future__ import annotations

from mpi4py import MPI
from torch import Tensor

from shanty.torch import buffers, meeting
from shanty.torch.buffers import pieces, readable, settle, spec, writable
from shanty.torch.dtypes import word
from shanty.torch.meeting import Channel
from shanty.torch.messages import Pending
from shanty.torch.work import CommunicationError

_LABEL = 24  # bytes with the name of a dtype


def send(at: Channel, tensor: Tensor, to: int, tag: int) -> Pending:
    """Begin to send; complete when the tensor may be written to again."""
    source = readable(tensor)
    requests = [at.comm.Isend(spec(piece), to, tag) for piece in pieces(source)]
    if meeting.CHECKED:
        requests.append(at.apart.Isend(_label(source), to, tag + 1))
    return Pending(_Messages(requests), source, lambda _: at.rank, (at.members[to],))


def receive(at: Channel, tensor: Tensor, source: int, tag: int) -> Pending:
    """Begin to receive into the tensor. A message of another length is an error, with
    SHANTY_CHECK=1 one of another dtype too.

    Raises ValueError where it comes from any source in several pieces: they could get mixed up.
    """
    room, label = writable(tensor), bytearray(_LABEL)
    if source == MPI.ANY_SOURCE:
        if room.nbytes > buffers.LARGEST:
            text = f"recv of {room.nbytes} bytes from any source: name the source instead."
            raise ValueError(text)
        messages: _Messages = _Next(at, room, tag, label)
    else:
        requests = [at.comm.Irecv(spec(piece), source, tag) for piece in pieces(room)]
        messages = _Messages([*requests, *_label_to_come(at, source, tag, label)])

    def complete(_: object = None) -> int:
        statuses = messages.statuses[: len(pieces(room))]
        came = sum(status.Get_count(word(room.dtype)) for status in statuses)
        sender = statuses[0].source
        known = any(label)
        if came != room.numel() or (known and label != _label(room)):
            asked, sent = (f" of {_name(each)}" if known else "" for each in (_label(room), label))
            raise CommunicationError(
                f"recv of {room.numel()} elements{asked}: rank {sender} sent {came}{sent} "
                f"(tag {tag})."
            )
        settle(room, tensor)
        return sender

    members = at.members if source == MPI.ANY_SOURCE else (at.members[source],)
    return Pending(messages, room, complete, members)


class _Messages:
    """The pieces of one message under way; stands where a request of MPI's would."""

    def __init__(self, requests: list[MPI.Request]) -> None:
        self.statuses = [MPI.Status() for _ in requests]
        self._left = list(zip(requests, self.statuses, strict=True))

    def Test(self, _: object = None) -> bool:  # noqa: N802 (as MPI calls it)
        """Whether all have come, or gone."""
        while self._left:
            request, status = self._left[-1]  # the label first, which comes in any case
            if not request.Test(status):
                return False
            self._left.pop()
        return True


class _Next(_Messages):
    """The next message with a tag, from whomever.

    It is looked for before it is received: MPICH now and then never completes a receive from any
    source that was begun before the message came over a network.
    """

    def __init__(self, at: Channel, room: Tensor, tag: int, label: bytearray) -> None:
        super().__init__([])
        self._at, self._room, self._tag, self._label = at, room, tag, label

    def Test(self, _: object = None) -> bool:  # noqa: N802 (as MPI calls it)
        """Whether it has come."""
        if not self.statuses:
            status = MPI.Status()
            message = self._at.comm.Improbe(MPI.ANY_SOURCE, self._tag, status)
            if message is None:
                return False
            labels = _label_to_come(self._at, status.source, self._tag, self._label)
            super().__init__([message.Irecv(spec(self._room)), *labels])
        return super().Test()


def _label(tensor: Tensor) -> bytes:
    """What goes beside a message with SHANTY_CHECK=1: its dtype, by name."""
    return str(tensor.dtype).removeprefix("torch.").encode().ljust(_LABEL, b"\0")


def _name(label: bytes | bytearray) -> str:
    return label.rstrip(b"\0").decode()


def _label_to_come(at: Channel, source: int, tag: int, label: bytearray) -> list[MPI.Request]:
    return [at.apart.Irecv(label, source, tag + 1)] if meeting.CHECKED else []
