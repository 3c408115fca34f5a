"""Large reductions between hosts, as rings: every link carries little more than the least possible.

On a wire the allreduce of Open MPI and MPICH takes twice the ring's bound 2 (n - 1) / n · bytes /
bandwidth (docs/how-to/torch.md). Here each part goes around in a few pieces, one close behind the
other: while one is added up, or its sender learns that there is room for it, others are on the
wire.
Ranks of one host are neighbours as a rule, so each host's cable is crossed once in each direction.
Within a host MPI's own are faster. All of it goes over `Channel.apart`, where no message of the
user's can come between. Importing this module starts MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from mpi4py import MPI

from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import LARGEST, Reduction, Tensor

LEAST = 1 << 19
"""Bytes from which on bandwidth counts for more than the ring's 2 (n - 1) messages in a row."""

TAG = 0
"""Of what goes over `Channel.apart` here and in `operations`: MPI keeps its order."""

_PIECES = 4  # of a part, under way at a time
_SHORT = 1 << 16  # bytes of a piece at least


class _Hop(NamedTuple):
    """The part of a rank as one piece passes: `out` goes to the right, `into` comes from the left.

    term, total: `total` becomes its reduction with `term` once `into` is there; None: nothing does.
    """

    out: Tensor
    into: Tensor
    term: Tensor | None = None
    total: Tensor | None = None


def pays(at: Channel, nbytes: int) -> bool:
    """Return true if the ring is the faster way for a tensor of `nbytes`."""
    return at.spread and nbytes >= LEAST


def all_reduce(at: Channel, flat: Tensor, how: Reduction) -> None:
    """`flat` becomes its reduction over all ranks."""
    ways = [
        [*_adding(at, pieces, pieces[at.rank]), *_passing(at, pieces)]
        for pieces in _cut(at, flat, even_counts(len(flat), at.size))
    ]
    _go_around(at, ways, how)


def reduce_scatter(
    at: Channel, flat: Tensor, counts: Sequence[int], output: Tensor, how: Reduction
) -> None:
    """`output`, flat, becomes the reduction of this rank's part of `flat` over all ranks.

    counts: elements of each rank's part. `output` shares no memory with `flat`.
    """
    kernels = at.kernels
    kernels.copy(output, kernels.split(flat, counts)[at.rank])
    cut = list(_cut(at, flat, counts))
    totals = kernels.split(output, even_counts(len(output), len(cut)))
    ways = [_adding(at, *each) for each in zip(cut, totals, strict=True)]
    _go_around(at, ways, how)


def all_gather(at: Channel, flat: Tensor, counts: Sequence[int]) -> None:
    """Every rank's own part of `flat` goes to all; counts: elements for each."""
    _go_around(at, [_passing(at, pieces) for pieces in _cut(at, flat, counts)])


def exchange(at: Channel, source: Tensor, counts: Sequence[int], room: Tensor) -> None:
    """counts[r] elements of `source` go to rank r; room[r] becomes what it has for this rank."""
    spec = at.kernels.spec
    parts = at.kernels.split(source, counts)
    at.kernels.copy(room[at.rank], parts[at.rank])
    steps = range(1, at.size)
    sources = [(at.rank - step) % at.size for step in steps]
    came = [at.apart.Irecv(spec(room[rank]), rank, TAG) for rank in sources]
    before = MPI.REQUEST_NULL
    for step in steps:  # two under way: all at once would crowd the receivers' cables
        to = (at.rank + step) % at.size
        gone = at.apart.Isend(spec(parts[to]), to, TAG)
        before.Wait()
        before = gone
    MPI.Request.Waitall([before, *came])


def even_counts(number: int, ranks: int) -> list[int]:
    """Return the sizes of the parts when this many elements are cut as evenly as possible."""
    least, more = divmod(number, ranks)
    return [least + (rank < more) for rank in range(ranks)]


def _cut(at: Channel, flat: Tensor, counts: Sequence[int]) -> Iterable[tuple[Tensor, ...]]:
    """The ranks' parts of `flat` in pieces: the first of each part, the second of each, …"""
    longest = max(counts) * flat.itemsize
    number = max(1, min(_PIECES, longest // _SHORT), -(-longest // LARGEST))
    parts = at.kernels.split(flat, counts)
    cut = [at.kernels.split(part, even_counts(len(part), number)) for part in parts]
    return zip(*cut, strict=True)


def _adding(at: Channel, pieces: Sequence[Tensor], total: Tensor) -> list[_Hop]:
    """Each rank's piece once around, added up on its way to that rank.

    total: this rank's own piece, or a copy; becomes the reduction. The others stay as they are.
    """
    longest = max(map(len, pieces))
    rooms = at.kernels.empty((2, longest), total.dtype, total)  # what came last, and what goes on
    hops = []
    out = pieces[at.rank - 1]
    for step in range(at.size - 1):
        own = pieces[(at.rank - 2 - step) % at.size]
        into = rooms[step % 2][: len(own)]
        last = step == at.size - 2
        hops.append(_Hop(out, into, into, total) if last else _Hop(out, into, own, into))
        out = into
    return hops


def _passing(at: Channel, pieces: Sequence[Tensor]) -> list[_Hop]:
    """Each rank's piece once around, to all."""
    around = [pieces[(at.rank - step) % at.size] for step in range(at.size)]
    return [_Hop(out, into) for out, into in pairwise(around)]


def _go_around(at: Channel, ways: Sequence[Sequence[_Hop]], how: Reduction | None = None) -> None:
    """All hops of all ways, of which each has as many; those of a way one after the other."""
    right, left = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    spec, address = at.kernels.spec, at.kernels.address
    leaving: dict[int, MPI.Request] = {}  # by the address of what they read

    def begin(hop: _Hop) -> MPI.Request:
        for memory in (hop.into, hop.out):  # (a piece of no length has the address of the next)
            leaving.pop(address(memory), MPI.REQUEST_NULL).Wait()
        coming = at.apart.Irecv(spec(hop.into), left, TAG)
        leaving[address(hop.out)] = at.apart.Isend(spec(hop.out), right, TAG)
        return coming

    coming = [begin(way[0]) for way in ways]
    for step in range(len(ways[0])):
        for place, way in enumerate(ways):
            coming[place].Wait()
            hop = way[step]
            if how is not None and hop.term is not None and hop.total is not None:
                term, total = (spec(each, how.datatype) for each in (hop.term, hop.total))
                how.op.Reduce_local(term, total)
            if step + 1 < len(way):
                coming[place] = begin(way[step + 1])
    MPI.Request.Waitall(list(leaving.values()))
