"""What runs on MPI for each call, on tensors that were checked before.

Every function takes the group's channel first, blocks until its part is done, and counts in
elements; ranks are ranks of the group. Importing this module starts MPI.

Half precision is accumulated in float32, in the order of the ranks, and rounded once. A long
tensor is cut among the ranks: each gets all ranks' versions of its part, in half precision, adds
them up and sends the rounded sum to all. That moves half of what a float32 allreduce would. A
short one is converted, and reduced by MPI in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch import buffers, ring
from shanty.torch.buffers import (
    apart,
    joined,
    pieces,
    readable,
    room_for,
    settle,
    spec,
    spread,
    vector,
    writable,
)
from shanty.torch.dtypes import Reduction, word
from shanty.torch.meeting import Channel
from shanty.torch.work import CommunicationError, MismatchError
from shanty.torch.worker import Pending

_SHORT_HALF = 4096  # elements of half precision up to which MPI reduces them in float32
_SEGMENT = 1 << 22  # elements of half precision that are under way at a time


def all_reduce(at: Channel, tensors: Sequence[Tensor], how: Reduction) -> None:
    """Each tensor becomes its reduction over all ranks."""
    for tensor in tensors:
        if _goes_in_parts(how, tensor.numel()):
            total = readable(tensor)
            for segment in torch.split(total.view(-1), _SEGMENT):
                _all_reduce_half(at, segment, how)
        else:
            total = _carried(tensor, how)
            for piece in pieces(total):
                if ring.pays(at, piece.nbytes):
                    ring.all_reduce(at, piece, how)
                else:
                    at.comm.Allreduce(MPI.IN_PLACE, spec(piece, how.datatype), how.op)
            how.divide(total, at.size)
        settle(total, tensor)


def reduce(at: Channel, tensor: Tensor, root: int, how: Reduction) -> None:
    """On `root` the tensor becomes the reduction; elsewhere it stays as it is."""
    total = _carried(tensor, how, spare=at.rank != root)
    for piece in pieces(total):
        if at.rank == root:
            at.comm.Reduce(MPI.IN_PLACE, spec(piece, how.datatype), how.op, root)
        else:
            at.comm.Reduce(spec(piece, how.datatype), None, how.op, root)
    if at.rank == root:
        how.divide(total, at.size)
        settle(total, tensor)


def broadcast(at: Channel, tensor: Tensor, root: int) -> None:
    """The tensor becomes that of `root`."""
    room = readable(tensor) if at.rank == root else writable(tensor)
    for piece in pieces(room):
        at.comm.Bcast(spec(piece), root)
    if at.rank != root:
        settle(room, tensor)


def all_gather(at: Channel, outputs: Sequence[Tensor], tensor: Tensor) -> None:
    """outputs[r] becomes rank r's tensor; sizes may differ between ranks."""
    room = room_for(outputs)
    _all_gather(at, room, [each.numel() for each in outputs], tensor)
    spread(room, outputs)


def all_gather_single(at: Channel, output: Tensor, tensor: Tensor) -> None:
    """`output`, ranks * tensor.numel() elements, becomes all ranks' tensors end to end."""
    room = writable(output)
    _all_gather(at, room, [tensor.numel()] * at.size, tensor)
    settle(room, output)


def reduce_scatter(at: Channel, output: Tensor, tensors: Sequence[Tensor], how: Reduction) -> None:
    """`output` becomes the reduction of tensors[this rank] over all ranks; sizes may differ."""
    _reduce_scatter(at, output, joined(tensors), [each.numel() for each in tensors], how)


def reduce_scatter_single(at: Channel, output: Tensor, tensor: Tensor, how: Reduction) -> None:
    """The same from one tensor of ranks * output.numel() elements."""
    _reduce_scatter(at, output, tensor, [output.numel()] * at.size, how)


def all_to_all(at: Channel, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """inputs[r] goes to rank r, outputs[r] comes from it."""
    room = room_for(outputs)
    source = apart(joined(inputs), room)
    taken, given = [each.numel() for each in outputs], [each.numel() for each in inputs]
    _exchange(at, source, given, room, taken)
    spread(room, outputs)


def all_to_all_single(
    at: Channel, output: Tensor, tensor: Tensor, taken: Sequence[int], given: Sequence[int]
) -> None:
    """The same within two tensors; element counts per rank."""
    room = writable(output)
    _exchange(at, apart(readable(tensor), room), given, room, taken)
    settle(room, output)


def gather(at: Channel, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
    """On `root` outputs[r] becomes rank r's tensor; elsewhere `outputs` is empty."""
    source = readable(tensor)
    given = [source.numel() if rank == root else 0 for rank in range(at.size)]
    if at.rank != root:
        _exchange(at, source, given, torch.empty(0, dtype=source.dtype), [0] * at.size)
        return
    room = room_for(outputs)
    _exchange(at, apart(source, room), given, room, [each.numel() for each in outputs])
    spread(room, outputs)


def scatter(at: Channel, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
    """`output` becomes root's inputs[this rank]; elsewhere than on `root` `inputs` is empty."""
    room = writable(output)
    taken = [room.numel() if rank == root else 0 for rank in range(at.size)]
    if at.rank == root:
        source = apart(joined(inputs), room)
        _exchange(at, source, [each.numel() for each in inputs], room, taken)
    else:
        _exchange(at, torch.empty(0, dtype=room.dtype), [0] * at.size, room, taken)
    settle(room, output)


def barrier(at: Channel) -> None:
    """Return when all ranks have come here: they have met, and nothing is left to do."""


def send(at: Channel, tensor: Tensor, to: int, tag: int) -> Pending:
    """Begin to send; complete when the tensor may be written to again."""
    source = readable(tensor)
    messages = _Messages([at.comm.Isend(spec(piece), to, tag) for piece in pieces(source)])
    return Pending(messages, source, lambda _: at.rank, (at.members[to],))


def receive(at: Channel, tensor: Tensor, source: int, tag: int) -> Pending:
    """Begin to receive into the tensor; a message of another length is an error.

    Raises ValueError where it comes from any source in several pieces: they could get mixed up.
    """
    room = writable(tensor)
    into = pieces(room)
    if len(into) > 1 and source == MPI.ANY_SOURCE:
        raise ValueError(f"recv of {room.nbytes} bytes from any source: name the source instead.")
    messages: _Messages = (
        _Next(at, room, tag)
        if source == MPI.ANY_SOURCE
        else _Messages([at.comm.Irecv(spec(piece), source, tag) for piece in into])
    )

    def complete(_: MPI.Status) -> int:
        came, sender = messages.came(word(room.dtype)), messages.statuses[0].source
        if came != room.numel():
            raise CommunicationError(
                f"recv of {room.numel()} elements: rank {sender} sent {came} (tag {tag})."
            )
        settle(room, tensor)
        return sender

    members = at.members if source == MPI.ANY_SOURCE else (at.members[source],)
    return Pending(messages, room, complete, members)


class _Messages:
    """The pieces of one message under way; stands where a request of MPI's would."""

    def __init__(self, requests: list[MPI.Request]) -> None:
        self._requests = requests
        self.statuses = [MPI.Status() for _ in requests]

    def Test(self, _status: MPI.Status) -> bool:  # noqa: N802 (as MPI calls it)
        """Whether all have come, or gone."""
        if len(self._requests) == 1:
            return self._requests[0].Test(self.statuses[0])
        return MPI.Request.Testall(self._requests, self.statuses)

    def came(self, datatype: MPI.Datatype) -> int:
        """How many elements."""
        return sum(status.Get_count(datatype) for status in self.statuses)


class _Next(_Messages):
    """The next message with a tag, from whomever.

    It is looked for before it is received: MPICH now and then never completes a receive from any
    source that was begun before the message came over a network.
    """

    def __init__(self, at: Channel, room: Tensor, tag: int) -> None:
        super().__init__([])
        self.statuses = [MPI.Status()]
        self._at, self._room, self._tag = at, room, tag

    def Test(self, _status: MPI.Status) -> bool:  # noqa: N802 (as MPI calls it)
        """Whether it has come."""
        if not self._requests:
            message = self._at.comm.Improbe(MPI.ANY_SOURCE, self._tag)
            if message is None:
                return False
            self._requests = [message.Irecv(spec(self._room))]
        return super().Test(_status)


def _exchange(
    at: Channel, source: Tensor, given: Sequence[int], room: Tensor, taken: Sequence[int]
) -> None:
    """given[r] elements of `source`, end to end, go to rank r; taken[r] come from it to `room`."""
    _agree_on_counts(at, given, taken)
    source, room = source.reshape(-1), room.view(-1)
    if at.largest <= buffers.LARGEST:
        at.comm.Alltoallv(vector(source, given), vector(room, taken))
        return
    requests = []
    for rank, part in enumerate(torch.split(room, list(taken))):
        requests += [at.comm.Irecv(spec(piece), rank) for piece in pieces(part)]
    for rank, part in enumerate(torch.split(source, list(given))):
        requests += [at.comm.Isend(spec(piece), rank) for piece in pieces(part)]
    MPI.Request.Waitall(requests)


def _agree_on_counts(at: Channel, given: Sequence[int], taken: Sequence[int]) -> None:
    """Raise MismatchError, on every rank, unless each expects what the others give."""
    own = torch.tensor([*given, *taken])
    every = torch.empty((at.size, 2, at.size), dtype=torch.int64)
    at.comm.Allgather(spec(own), spec(every))
    differ = (every[:, 0] != every[:, 1].t()).nonzero()
    if len(differ):
        sender, receiver = differ[0].tolist()
        raise MismatchError(
            f"rank {sender} sends {every[sender, 0, receiver]} elements to rank {receiver}, which "
            f"expects {every[receiver, 1, sender]} of it (ranks of the group)."
        )


def _goes_in_parts(how: Reduction, elements: int) -> bool:
    return how.carrier is not None and how.factor is None and elements > _SHORT_HALF


def _all_reduce_half(at: Channel, tensor: Tensor, how: Reduction) -> None:
    counts = ring.even_counts(tensor.numel(), at.size)
    parts = _versions(at, tensor, counts)
    start = sum(counts[: at.rank])
    total = how.fold(parts)
    how.divide(total, at.size)
    tensor[start : start + counts[at.rank]].copy_(total)
    if ring.pays(at, tensor.nbytes):
        ring.all_gather(at, tensor, counts)
    else:
        at.comm.Allgatherv(MPI.IN_PLACE, vector(tensor, counts))


def _versions(at: Channel, tensor: Tensor, counts: Sequence[int]) -> Tensor:
    """All ranks' versions of this rank's part of a flat tensor cut into `counts` elements."""
    room = tensor.new_empty((at.size, counts[at.rank]))
    if ring.pays(at, tensor.nbytes):
        ring.exchange(at, tensor, counts, room)
    else:
        at.comm.Alltoallv(vector(tensor, counts), vector(room, [counts[at.rank]] * at.size))
    return room


def _reduce_scatter(
    at: Channel, output: Tensor, tensor: Tensor, counts: list[int], how: Reduction
) -> None:
    if _goes_in_parts(how, sum(counts)) and at.largest <= buffers.LARGEST:
        room = how.fold(_versions(at, readable(tensor).view(-1), counts))
    else:
        room = _reduced_part(at, output, tensor, counts, how)
    how.divide(room, at.size)
    settle(room.view(output.shape), output)


def _reduced_part(
    at: Channel, output: Tensor, tensor: Tensor, counts: list[int], how: Reduction
) -> Tensor:
    carrier = how.carrier
    room = torch.empty(output.shape, dtype=carrier) if carrier else writable(output)
    source = apart(_carried(tensor, how, spare=True), room)
    if at.largest > buffers.LARGEST:
        for root, part in enumerate(torch.split(source.reshape(-1), counts)):
            into = pieces(room) if root == at.rank else None
            for place, piece in enumerate(pieces(part)):
                there = spec(into[place], how.datatype) if into else None
                at.comm.Reduce(spec(piece, how.datatype), there, how.op, root)
    elif len(set(counts)) == 1:
        target = spec(room, how.datatype)
        at.comm.Reduce_scatter_block(spec(source, how.datatype), target, how.op)
    else:
        target = spec(room, how.datatype)
        at.comm.Reduce_scatter(spec(source, how.datatype), target, counts, how.op)
    return room


def _all_gather(at: Channel, room: Tensor, counts: list[int], tensor: Tensor) -> None:
    # Always in place, after copying one's own part (which MPI would do as well): the standard
    # wants either all ranks in place or none, and only some may pass a view of their output.
    room = room.view(-1)
    start = sum(counts[: at.rank])
    place = room[start : start + counts[at.rank]]
    own = readable(tensor).view(-1)
    if own.data_ptr() != place.data_ptr():
        place.copy_(apart(own, place))
    if room.nbytes > buffers.LARGEST:
        for root, part in enumerate(torch.split(room, counts)):
            for piece in pieces(part):
                at.comm.Bcast(spec(piece), root)
    elif len(set(counts)) == 1:
        at.comm.Allgather(MPI.IN_PLACE, spec(room))
    else:
        at.comm.Allgatherv(MPI.IN_PLACE, vector(room, counts))


def _carried(tensor: Tensor, how: Reduction, *, spare: bool = False) -> Tensor:
    """Dense elements in the dtype in which they are reduced: the tensor itself, or a copy.

    spare: the tensor itself must not change.
    """
    dense = readable(tensor)
    if how.carrier is not None:
        dense = dense.to(how.carrier)
    if how.factor is None:
        return dense
    return dense * how.factor if spare or dense is not tensor else dense.mul_(how.factor)
