"""The operations on MPI, on tensors that were checked before.

Every function takes the group's channel first, blocks until its part is done, and counts in
elements; ranks are ranks of the group. Importing this module starts MPI.

Half precision is accumulated in float32, in the order of the ranks, and rounded once. A long
tensor is cut among the ranks: each gets all ranks' versions of its part, in half precision, adds
them up and sends the rounded sum to all. That moves half of what a float32 allreduce would. A
short one is converted, and reduced by MPI in float32.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mpi4py import MPI

from shanty.collectives import huge_pages, kernels, ring
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Reduction, Tensor, elements

_SHORT_HALF = 4096  # elements of half precision up to which MPI reduces them in float32
_SEGMENT = 1 << 20  # elements of half precision that are under way at a time
_CACHED = 1 << 21  # bytes that ranks of one host reduce at a time: they stay in the CPU's caches


def all_reduce(at: Channel, tensors: Sequence[Tensor], how: Reduction) -> None:
    """Each tensor becomes its reduction over all ranks."""
    for tensor in tensors:
        if how.carrier is not None and _goes_in_parts(how, elements(tensor)):
            total = at.kernels.readable(tensor)
            _all_reduce_half(at, at.kernels.flat(total), how)
        else:
            total = _carried(at, tensor, how)
            large = total is tensor and total.nbytes >= huge_pages.LEAST
            if large and at.kernels.device(total) == "cpu":
                huge_pages.count(at.kernels.address(total), total.nbytes)
            for piece in at.kernels.pieces(total, _piece(at)):
                if ring.pays(at, piece.nbytes):
                    ring.all_reduce(at, at.kernels.flat(piece), how)
                else:
                    at.comm.Allreduce(MPI.IN_PLACE, at.kernels.spec(piece, how.datatype), how.op)
                how.divide(piece, at.size)  # while it is in the caches
        at.kernels.settle(total, tensor)


def reduce(at: Channel, tensor: Tensor, root: int, how: Reduction) -> None:
    """On `root` the tensor becomes the reduction; elsewhere it stays as it is."""
    total = _carried(at, tensor, how, spare=at.rank != root)
    for piece in at.kernels.pieces(total, _piece(at)):
        if at.rank == root:
            at.comm.Reduce(MPI.IN_PLACE, at.kernels.spec(piece, how.datatype), how.op, root)
        else:
            at.comm.Reduce(at.kernels.spec(piece, how.datatype), None, how.op, root)
    if at.rank == root:
        how.divide(total, at.size)
        at.kernels.settle(total, tensor)


def broadcast(at: Channel, tensor: Tensor, root: int) -> None:
    """The tensor becomes that of `root`."""
    room = at.kernels.readable(tensor) if at.rank == root else at.kernels.writable(tensor)
    for piece in at.kernels.pieces(room):
        at.comm.Bcast(at.kernels.spec(piece), root)
    if at.rank != root:
        at.kernels.settle(room, tensor)


def all_gather(at: Channel, outputs: Sequence[Tensor], tensor: Tensor) -> None:
    """outputs[r] becomes rank r's tensor; sizes may differ between ranks."""
    room = at.kernels.room_for(outputs)
    _all_gather(at, room, [*map(elements, outputs)], tensor)
    at.kernels.spread(room, outputs)


def all_gather_single(at: Channel, output: Tensor, tensor: Tensor) -> None:
    """`output`, ranks times the tensor's elements, becomes all ranks' tensors end to end."""
    room = at.kernels.writable(output)
    _all_gather(at, room, [elements(tensor)] * at.size, tensor)
    at.kernels.settle(room, output)


def reduce_scatter(at: Channel, output: Tensor, tensors: Sequence[Tensor], how: Reduction) -> None:
    """`output` becomes the reduction of tensors[this rank] over all ranks; sizes may differ."""
    _reduce_scatter(at, output, at.kernels.joined(tensors), [*map(elements, tensors)], how)


def reduce_scatter_single(at: Channel, output: Tensor, tensor: Tensor, how: Reduction) -> None:
    """`output` becomes its part of one tensor of ranks times as many elements."""
    _reduce_scatter(at, output, tensor, [elements(output)] * at.size, how)


def all_to_all(at: Channel, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """inputs[r] goes to rank r, outputs[r] comes from it."""
    room = at.kernels.room_for(outputs)
    source = at.kernels.apart(at.kernels.joined(inputs), room)
    taken, given = [*map(elements, outputs)], [*map(elements, inputs)]
    _exchange(at, source, given, room, taken)
    at.kernels.spread(room, outputs)


def all_to_all_single(
    at: Channel, output: Tensor, tensor: Tensor, taken: Sequence[int], given: Sequence[int]
) -> None:
    """given[r] elements of `tensor` go to rank r, taken[r] come from it."""
    room = at.kernels.writable(output)
    _exchange(at, at.kernels.apart(at.kernels.readable(tensor), room), given, room, taken)
    at.kernels.settle(room, output)


def gather(at: Channel, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
    """On `root` outputs[r] becomes rank r's tensor; elsewhere `outputs` is empty."""
    source = at.kernels.readable(tensor)
    given = [elements(source) if rank == root else 0 for rank in range(at.size)]
    if at.rank != root:
        _exchange(at, source, given, at.kernels.empty((0,), source.dtype), [0] * at.size)
        return
    room = at.kernels.room_for(outputs)
    _exchange(at, at.kernels.apart(source, room), given, room, [*map(elements, outputs)])
    at.kernels.spread(room, outputs)


def gather_single(at: Channel, output: Tensor, tensor: Tensor, root: int) -> None:
    """On `root` `output` becomes all ranks' tensors end to end; elsewhere it is not looked at."""
    if at.rank != root:
        gather(at, (), tensor, root)
        return
    room = at.kernels.writable(output)
    gather(at, at.kernels.rows(at.kernels.shaped(room, (at.size, elements(tensor)))), tensor, root)
    at.kernels.settle(room, output)


def scatter(at: Channel, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
    """`output` becomes root's inputs[this rank]; elsewhere than on `root` `inputs` is empty."""
    room = at.kernels.writable(output)
    taken = [elements(room) if rank == root else 0 for rank in range(at.size)]
    if at.rank == root:
        source = at.kernels.apart(at.kernels.joined(inputs), room)
        _exchange(at, source, [*map(elements, inputs)], room, taken)
    else:
        _exchange(at, at.kernels.empty((0,), room.dtype), [0] * at.size, room, taken)
    at.kernels.settle(room, output)


def barrier(at: Channel) -> None:
    """Do nothing: the handshake before it has ended when all ranks had come."""


def _exchange(
    at: Channel, source: Tensor, given: Sequence[int], room: Tensor, taken: Sequence[int]
) -> None:
    """given[r] elements of `source`, end to end, go to rank r; taken[r] come from it to `room`."""
    if at.even < 0:
        _agree_on_counts(at, given, taken)
    source, room = at.kernels.flat(source), at.kernels.flat(room)
    if at.largest <= kernels.LARGEST:
        if at.even < 0:
            at.comm.Alltoallv(at.kernels.vector(source, given), at.kernels.vector(room, taken))
        else:
            at.comm.Alltoall(at.kernels.spec(source), at.kernels.spec(room))
        return
    requests = []
    for begin, parts in (
        (at.apart.Irecv, at.kernels.split(room, taken)),
        (at.apart.Isend, at.kernels.split(source, given)),
    ):
        for rank, part in enumerate(parts):
            pieces = at.kernels.pieces(part)
            requests += [begin(at.kernels.spec(each), rank, ring.TAG) for each in pieces]
    MPI.Request.Waitall(requests)


def _agree_on_counts(at: Channel, given: Sequence[int], taken: Sequence[int]) -> None:
    """Raise MismatchError, on every rank, unless each expects what the others give."""
    every = exchange_counts(at, [*given, *taken])
    pairs = ((one, other) for one in range(at.size) for other in range(at.size))
    differ = [(a, b) for a, b in pairs if every[a][b] != every[b][at.size + a]]
    if differ:
        sender, receiver = differ[0]
        calls = at.comm.allgather(str(at.met))
        lines = [f"  rank {rank}: {call}" for rank, call in enumerate(calls)]
        raise at.errors.mismatch(
            f"rank {sender} sends {every[sender][receiver]} elements to rank {receiver}, which "
            f"expects {every[receiver][at.size + sender]} of it (ranks of the group):\n"
            + "\n".join(lines)
        )


def _goes_in_parts(how: Reduction, elements: int) -> bool:
    return how.carrier is not None and how.factor is None and elements > _SHORT_HALF


def _all_reduce_half(at: Channel, flat: Tensor, how: Reduction) -> None:
    tools = at.kernels
    segments = tools.split(flat, _SEGMENT)
    most = ring.even_counts(len(segments[0]), at.size)[0]
    room = tools.empty((at.size * most,), flat.dtype, flat)
    total = tools.empty((most,), how.carrier, flat)
    for segment in segments:
        counts = ring.even_counts(len(segment), at.size)
        mine = counts[at.rank]
        parts = tools.shaped(room[: at.size * mine], (at.size, mine))
        _versions(at, segment, counts, parts)
        own = total[:mine]
        tools.fold(how.name, tools.rows(parts), own)
        how.divide(own, at.size)
        tools.copy(tools.split(segment, counts)[at.rank], own)
        if ring.pays(at, segment.nbytes):
            ring.all_gather(at, segment, counts)
        else:
            at.comm.Allgatherv(MPI.IN_PLACE, at.kernels.vector(segment, counts))


def _versions(at: Channel, flat: Tensor, counts: Sequence[int], room: Tensor) -> None:
    """room[r] becomes rank r's version of this rank's part of `flat`; counts: of all parts."""
    if ring.pays(at, flat.nbytes):
        ring.exchange(at, flat, counts, room)
    else:
        mine = [counts[at.rank]] * at.size
        at.comm.Alltoallv(at.kernels.vector(flat, counts), at.kernels.vector(room, mine))


def _reduce_scatter(
    at: Channel, output: Tensor, tensor: Tensor, counts: list[int], how: Reduction
) -> None:
    if _goes_in_parts(how, sum(counts)) and at.largest <= kernels.LARGEST:
        flat, mine = at.kernels.flat(at.kernels.readable(tensor)), counts[at.rank]
        parts = at.kernels.empty((at.size, mine), flat.dtype, flat)
        room = at.kernels.empty((mine,), how.carrier, flat)
        _versions(at, flat, counts, parts)
        at.kernels.fold(how.name, at.kernels.rows(parts), room)
    else:
        room = _reduced_part(at, output, tensor, counts, how)
    how.divide(room, at.size)
    at.kernels.settle(at.kernels.shaped(room, output.shape), output)


def _reduced_part(
    at: Channel, output: Tensor, tensor: Tensor, counts: list[int], how: Reduction
) -> Tensor:
    carried = how.carrier is not None
    room = at.kernels.empty(output.shape, how.carrier) if carried else at.kernels.writable(output)
    source = at.kernels.apart(_carried(at, tensor, how, spare=True), room)
    even = len(set(counts)) == 1
    if even and not at.spread and source.nbytes > _CACHED:
        _reduce_in_pieces(at, at.kernels.flat(source), at.kernels.flat(room), how)
    elif at.largest > kernels.LARGEST:
        _reduce_in_turn(at, at.kernels.flat(source), counts, at.kernels.flat(room), how)
    elif ring.pays(at, source.nbytes):
        ring.reduce_scatter(at, at.kernels.flat(source), counts, at.kernels.flat(room), how)
    elif even:
        target = at.kernels.spec(room, how.datatype)
        at.comm.Reduce_scatter_block(at.kernels.spec(source, how.datatype), target, how.op)
    else:
        target = at.kernels.spec(room, how.datatype)
        at.comm.Reduce_scatter(at.kernels.spec(source, how.datatype), target, counts, how.op)
    return room


def _reduce_in_turn(
    at: Channel, flat: Tensor, counts: list[int], room: Tensor, how: Reduction
) -> None:
    """Each rank's part of `flat` to that rank, one part after the other."""
    for root, part in enumerate(at.kernels.split(flat, counts)):
        into = at.kernels.pieces(room) if root == at.rank else None
        for place, piece in enumerate(at.kernels.pieces(part)):
            there = at.kernels.spec(into[place], how.datatype) if into else None
            at.comm.Reduce(at.kernels.spec(piece, how.datatype), there, how.op, root)


def _reduce_in_pieces(at: Channel, flat: Tensor, room: Tensor, how: Reduction) -> None:
    """Reduce even parts, a piece of each at a time, laid side by side for MPI."""
    tools = at.kernels
    parts = tools.shaped(flat, (at.size, -1))
    length = max(1, _CACHED // (at.size * flat.itemsize))
    packed = tools.empty((at.size * length,), flat.dtype, flat)
    for start in range(0, len(room), length):
        into = room[start : start + length]
        some = packed[: at.size * len(into)]
        tools.copy(tools.shaped(some, (at.size, -1)), parts[:, start : start + length])
        at.comm.Reduce_scatter_block(
            at.kernels.spec(some, how.datatype), at.kernels.spec(into, how.datatype), how.op
        )


def _piece(at: Channel) -> int:
    return kernels.LARGEST if at.spread else _CACHED


def _all_gather(at: Channel, room: Tensor, counts: list[int], tensor: Tensor) -> None:
    # Always in place, after copying one's own part (which MPI would do as well): the standard
    # wants either all ranks in place or none, and only some may pass a view of their output.
    room = at.kernels.flat(room)
    start = sum(counts[: at.rank])
    place = room[start : start + counts[at.rank]]
    own = at.kernels.flat(at.kernels.readable(tensor))
    if at.kernels.address(own) != at.kernels.address(place):
        at.kernels.copy(place, at.kernels.apart(own, place))
    if ring.pays(at, room.nbytes):
        ring.all_gather(at, room, counts)
    elif room.nbytes > kernels.LARGEST:
        for root, part in enumerate(at.kernels.split(room, counts)):
            for piece in at.kernels.pieces(part):
                at.comm.Bcast(at.kernels.spec(piece), root)
    elif len(set(counts)) == 1:
        at.comm.Allgather(MPI.IN_PLACE, at.kernels.spec(room))
    else:
        at.comm.Allgatherv(MPI.IN_PLACE, at.kernels.vector(room, counts))


def _carried(at: Channel, tensor: Tensor, how: Reduction, *, spare: bool = False) -> Tensor:
    """Dense elements in the dtype in which they are reduced: the tensor itself, or a copy.

    spare: the tensor itself must not change.
    """
    dense = at.kernels.readable(tensor)
    if how.carrier is not None:
        dense = at.kernels.convert(dense, how.carrier)
    if how.factor is None:
        return dense
    if spare and dense is tensor:
        dense = at.kernels.clone(dense)
    at.kernels.scale((dense,), how.factor)
    return dense


def exchange_counts(at: Channel, counts: Sequence[int]) -> list[list[int]]:
    """Return the counts of every rank; all pass as many."""
    every = array("q", bytes(8 * at.size * len(counts)))
    at.comm.Allgather(array("q", counts), every)
    found = every.tolist()
    return [found[rank * len(counts) : (rank + 1) * len(counts)] for rank in range(at.size)]
