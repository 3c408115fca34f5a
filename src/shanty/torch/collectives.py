"""What the communication thread runs for each call: MPI on tensors that were checked before.

Every function takes the group's communicator first, blocks until its part is done, and counts in
elements; ranks are ranks of the group. Importing this module starts MPI.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch.buffers import (
    apart,
    joined,
    readable,
    room_for,
    settle,
    spec,
    spread,
    vector,
    writable,
)
from shanty.torch.dtypes import Reduction, word
from shanty.torch.work import CommunicationError
from shanty.torch.worker import Pending


def all_reduce(comm: MPI.Intracomm, tensors: Sequence[Tensor], how: Reduction) -> None:
    """Each tensor becomes its reduction over all ranks."""
    for tensor in tensors:
        total = _carried(tensor, how)
        comm.Allreduce(MPI.IN_PLACE, spec(total, how.datatype), how.op)
        how.divide(total, comm.size)
        settle(total, tensor)


def reduce(comm: MPI.Intracomm, tensor: Tensor, root: int, how: Reduction) -> None:
    """On `root` the tensor becomes the reduction; elsewhere it stays as it is."""
    if comm.rank != root:
        comm.Reduce(spec(_carried(tensor, how), how.datatype), None, how.op, root)
        return
    total = _carried(tensor, how)
    comm.Reduce(MPI.IN_PLACE, spec(total, how.datatype), how.op, root)
    how.divide(total, comm.size)
    settle(total, tensor)


def broadcast(comm: MPI.Intracomm, tensor: Tensor, root: int) -> None:
    """The tensor becomes that of `root`."""
    if comm.rank == root:
        comm.Bcast(spec(readable(tensor)), root)
        return
    room = writable(tensor)
    comm.Bcast(spec(room), root)
    settle(room, tensor)


def all_gather(comm: MPI.Intracomm, outputs: Sequence[Tensor], tensor: Tensor) -> None:
    """outputs[r] becomes rank r's tensor; sizes may differ between ranks."""
    room = room_for(outputs)
    _all_gather(comm, room, [each.numel() for each in outputs], tensor)
    spread(room, outputs)


def all_gather_single(comm: MPI.Intracomm, output: Tensor, tensor: Tensor) -> None:
    """`output`, ranks * tensor.numel() elements, becomes all ranks' tensors end to end."""
    room = writable(output)
    _all_gather(comm, room, [tensor.numel()] * comm.size, tensor)
    settle(room, output)


def reduce_scatter(
    comm: MPI.Intracomm, output: Tensor, tensors: Sequence[Tensor], how: Reduction
) -> None:
    """`output` becomes the reduction of tensors[this rank] over all ranks; sizes may differ."""
    _reduce_scatter(comm, output, joined(tensors), [each.numel() for each in tensors], how)


def reduce_scatter_single(
    comm: MPI.Intracomm, output: Tensor, tensor: Tensor, how: Reduction
) -> None:
    """The same from one tensor of ranks * output.numel() elements."""
    _reduce_scatter(comm, output, tensor, [output.numel()] * comm.size, how)


def all_to_all(comm: MPI.Intracomm, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """inputs[r] goes to rank r, outputs[r] comes from it."""
    room = room_for(outputs)
    source = apart(joined(inputs), room)
    taken, given = [each.numel() for each in outputs], [each.numel() for each in inputs]
    # The v form whatever the counts: one rank's being equal says nothing of the others'.
    comm.Alltoallv(vector(source, given), vector(room, taken))
    spread(room, outputs)


def all_to_all_single(
    comm: MPI.Intracomm, output: Tensor, tensor: Tensor, taken: Sequence[int], given: Sequence[int]
) -> None:
    """The same within two tensors; element counts per rank, both empty for equal parts."""
    room = writable(output)
    source = apart(readable(tensor), room)
    if given or taken:
        comm.Alltoallv(vector(source, given), vector(room, taken))
    else:
        comm.Alltoall(spec(source), spec(room))
    settle(room, output)


def gather(comm: MPI.Intracomm, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
    """On `root` outputs[r] becomes rank r's tensor; elsewhere `outputs` is empty."""
    source = readable(tensor)
    if comm.rank != root:
        comm.Gatherv(spec(source), None, root)
        return
    room = room_for(outputs)
    counts = [each.numel() for each in outputs]
    comm.Gatherv(spec(apart(source, room)), vector(room, counts), root)
    spread(room, outputs)


def scatter(comm: MPI.Intracomm, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
    """`output` becomes root's inputs[this rank]; elsewhere than on `root` `inputs` is empty."""
    room = writable(output)
    if comm.rank == root:
        source = apart(joined(inputs), room)
        comm.Scatterv(vector(source, [each.numel() for each in inputs]), spec(room), root)
    else:
        comm.Scatterv(None, spec(room), root)
    settle(room, output)


def barrier(comm: MPI.Intracomm) -> None:
    """Return when all ranks have come here."""
    comm.Barrier()


def send(comm: MPI.Intracomm, tensor: Tensor, to: int, tag: int) -> Pending:
    """Begin to send; complete when the tensor may be written to again."""
    source = readable(tensor)
    return Pending(comm.Isend(spec(source), to, tag), source, lambda _: comm.rank)


def receive(comm: MPI.Intracomm, tensor: Tensor, source: int, tag: int) -> Pending:
    """Begin to receive into the tensor; a message of another length is an error."""
    room = writable(tensor)

    def complete(status: MPI.Status) -> int:
        came = status.Get_count(word(room.dtype))
        if came != room.numel():
            raise CommunicationError(
                f"recv of {room.numel()} elements: rank {status.source} sent {came} (tag {tag})."
            )
        settle(room, tensor)
        return status.source

    return Pending(comm.Irecv(spec(room), source, tag), room, complete)


def _reduce_scatter(
    comm: MPI.Intracomm, output: Tensor, tensor: Tensor, counts: list[int], how: Reduction
) -> None:
    carrier = how.carrier
    room = torch.empty(output.shape, dtype=carrier) if carrier else writable(output)
    sent = spec(apart(_carried(tensor, how), room), how.datatype)
    if len(set(counts)) == 1:
        comm.Reduce_scatter_block(sent, spec(room, how.datatype), how.op)
    else:
        comm.Reduce_scatter(sent, spec(room, how.datatype), counts, how.op)
    how.divide(room, comm.size)
    settle(room, output)


def _all_gather(comm: MPI.Intracomm, room: Tensor, counts: list[int], tensor: Tensor) -> None:
    # Always in place, after copying one's own part (which MPI would do as well): the standard
    # wants either all ranks in place or none, and only some may pass a view of their output.
    start = sum(counts[: comm.rank])
    place = room.view(-1)[start : start + counts[comm.rank]]
    own = readable(tensor).view(-1)
    if own.data_ptr() != place.data_ptr():
        place.copy_(apart(own, place))
    if len(set(counts)) == 1:
        comm.Allgather(MPI.IN_PLACE, spec(room))
    else:
        comm.Allgatherv(MPI.IN_PLACE, vector(room, counts))


def _carried(tensor: Tensor, how: Reduction) -> Tensor:
    """Dense elements in the dtype in which they are reduced: the tensor itself, or a copy."""
    dense = readable(tensor)
    return dense if how.carrier is None else dense.to(how.carrier)
