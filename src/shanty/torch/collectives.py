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

from shanty.torch import buffers, pages, ring
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
from shanty.torch.dtypes import Reduction
from shanty.torch.meeting import Channel
from shanty.torch.work import MismatchError

_SHORT_HALF = 4096  # elements of half precision up to which MPI reduces them in float32
_SEGMENT = 1 << 20  # elements of half precision that are under way at a time
_CACHED = 1 << 21  # bytes that ranks of one host reduce at a time: they stay in the CPU's caches


def all_reduce(at: Channel, tensors: Sequence[Tensor], how: Reduction) -> None:
    """Each tensor becomes its reduction over all ranks."""
    for tensor in tensors:
        if _goes_in_parts(how, tensor.numel()):
            total = readable(tensor)
            _all_reduce_half(at, total.view(-1), how)
        else:
            total = _carried(tensor, how)
            if total is tensor and total.nbytes >= pages.LEAST and total.is_cpu:
                pages.stays(total)
            for piece in pieces(total, _piece(at)):
                if ring.pays(at, piece.nbytes):
                    ring.all_reduce(at, piece.view(-1), how)
                else:
                    at.comm.Allreduce(MPI.IN_PLACE, spec(piece, how.datatype), how.op)
                how.divide(piece, at.size)  # while it is in the caches
        settle(total, tensor)


def reduce(at: Channel, tensor: Tensor, root: int, how: Reduction) -> None:
    """On `root` the tensor becomes the reduction; elsewhere it stays as it is."""
    total = _carried(tensor, how, spare=at.rank != root)
    for piece in pieces(total, _piece(at)):
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


def gather_single(at: Channel, output: Tensor, tensor: Tensor, root: int) -> None:
    """On `root` `output` becomes all ranks' tensors end to end; elsewhere it is not looked at."""
    if at.rank != root:
        gather(at, (), tensor, root)
        return
    room = writable(output)
    gather(at, room.view(at.size, tensor.numel()).unbind(), tensor, root)
    settle(room, output)


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


def _exchange(
    at: Channel, source: Tensor, given: Sequence[int], room: Tensor, taken: Sequence[int]
) -> None:
    """given[r] elements of `source`, end to end, go to rank r; taken[r] come from it to `room`."""
    if at.even < 0:
        _agree_on_counts(at, given, taken)
    source, room = source.reshape(-1), room.view(-1)
    if at.largest <= buffers.LARGEST:
        if at.even < 0:
            at.comm.Alltoallv(vector(source, given), vector(room, taken))
        else:
            at.comm.Alltoall(spec(source), spec(room))
        return
    requests = []
    for rank, part in enumerate(torch.split(room, list(taken))):
        requests += [at.apart.Irecv(spec(piece), rank, ring.TAG) for piece in pieces(part)]
    for rank, part in enumerate(torch.split(source, list(given))):
        requests += [at.apart.Isend(spec(piece), rank, ring.TAG) for piece in pieces(part)]
    MPI.Request.Waitall(requests)


def _agree_on_counts(at: Channel, given: Sequence[int], taken: Sequence[int]) -> None:
    """Raise MismatchError, on every rank, unless each expects what the others give."""
    own = torch.tensor([*given, *taken])
    every = torch.empty((at.size, 2, at.size), dtype=torch.int64)
    at.comm.Allgather(spec(own), spec(every))
    differ = (every[:, 0] != every[:, 1].t()).nonzero()
    if len(differ):
        sender, receiver = differ[0].tolist()
        calls = at.comm.allgather(str(at.met))
        lines = [f"  rank {rank}: {call}" for rank, call in enumerate(calls)]
        raise MismatchError(
            f"rank {sender} sends {every[sender, 0, receiver]} elements to rank {receiver}, which "
            f"expects {every[receiver, 1, sender]} of it (ranks of the group):\n" + "\n".join(lines)
        )


def _goes_in_parts(how: Reduction, elements: int) -> bool:
    return how.carrier is not None and how.factor is None and elements > _SHORT_HALF


def _all_reduce_half(at: Channel, flat: Tensor, how: Reduction) -> None:
    segments = torch.split(flat, _SEGMENT)
    most = ring.even_counts(segments[0].numel(), at.size)[0]
    room = flat.new_empty(at.size * most)
    total = flat.new_empty(most, dtype=how.carrier)
    for segment in segments:
        counts = ring.even_counts(segment.numel(), at.size)
        mine = counts[at.rank]
        parts = room[: at.size * mine].view(at.size, mine)
        _versions(at, segment, counts, parts)
        own = total[:mine]
        how.fold(parts.unbind(), own)
        how.divide(own, at.size)
        torch.split(segment, counts)[at.rank].copy_(own)
        if ring.pays(at, segment.nbytes):
            ring.all_gather(at, segment, counts)
        else:
            at.comm.Allgatherv(MPI.IN_PLACE, vector(segment, counts))


def _versions(at: Channel, flat: Tensor, counts: Sequence[int], room: Tensor) -> None:
    """room[r] becomes rank r's version of this rank's part of `flat`; counts: of all parts."""
    if ring.pays(at, flat.nbytes):
        ring.exchange(at, flat, counts, room)
    else:
        mine = [counts[at.rank]] * at.size
        at.comm.Alltoallv(vector(flat, counts), vector(room, mine))


def _reduce_scatter(
    at: Channel, output: Tensor, tensor: Tensor, counts: list[int], how: Reduction
) -> None:
    if _goes_in_parts(how, sum(counts)) and at.largest <= buffers.LARGEST:
        flat, mine = readable(tensor).view(-1), counts[at.rank]
        parts, room = flat.new_empty((at.size, mine)), flat.new_empty(mine, dtype=how.carrier)
        _versions(at, flat, counts, parts)
        how.fold(parts.unbind(), room)
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
    even = len(set(counts)) == 1
    if even and not at.spread and source.nbytes > _CACHED:
        _reduce_in_pieces(at, source.reshape(-1), room.view(-1), how)
    elif at.largest > buffers.LARGEST:
        _reduce_in_turn(at, source.reshape(-1), counts, room.view(-1), how)
    elif ring.pays(at, source.nbytes):
        ring.reduce_scatter(at, source.reshape(-1), counts, room.view(-1), how)
    elif even:
        target = spec(room, how.datatype)
        at.comm.Reduce_scatter_block(spec(source, how.datatype), target, how.op)
    else:
        target = spec(room, how.datatype)
        at.comm.Reduce_scatter(spec(source, how.datatype), target, counts, how.op)
    return room


def _reduce_in_turn(
    at: Channel, flat: Tensor, counts: list[int], room: Tensor, how: Reduction
) -> None:
    """Each rank's part of `flat` to that rank, one part after the other."""
    for root, part in enumerate(torch.split(flat, counts)):
        into = pieces(room) if root == at.rank else None
        for place, piece in enumerate(pieces(part)):
            there = spec(into[place], how.datatype) if into else None
            at.comm.Reduce(spec(piece, how.datatype), there, how.op, root)


def _reduce_in_pieces(at: Channel, flat: Tensor, room: Tensor, how: Reduction) -> None:
    """The same of even parts, a piece of each at a time, laid side by side for MPI."""
    parts = flat.view(at.size, -1)
    length = max(1, _CACHED // (at.size * flat.itemsize))
    packed = flat.new_empty(at.size * length)
    for start in range(0, len(room), length):
        into = room[start : start + length]
        some = packed[: at.size * len(into)]
        some.view(at.size, -1).copy_(parts[:, start : start + length])
        at.comm.Reduce_scatter_block(spec(some, how.datatype), spec(into, how.datatype), how.op)


def _piece(at: Channel) -> int:
    """Bytes that are reduced at a time."""
    return buffers.LARGEST if at.spread else _CACHED


def _all_gather(at: Channel, room: Tensor, counts: list[int], tensor: Tensor) -> None:
    # Always in place, after copying one's own part (which MPI would do as well): the standard
    # wants either all ranks in place or none, and only some may pass a view of their output.
    room = room.view(-1)
    start = sum(counts[: at.rank])
    place = room[start : start + counts[at.rank]]
    own = readable(tensor).view(-1)
    if own.data_ptr() != place.data_ptr():
        place.copy_(apart(own, place))
    if ring.pays(at, room.nbytes):
        ring.all_gather(at, room, counts)
    elif room.nbytes > buffers.LARGEST:
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
