"""Large reductions between hosts, as rings: every link carries little more than the least possible.

On a wire the allreduce of Open MPI and MPICH takes twice the ring's bound 2 (n - 1) / n · bytes /
bandwidth (docs/torch.md); this one takes 1.2 times that, on every MPI. Ranks of one host are
neighbours as a rule, so each host's cable is crossed once in each direction. Within a host MPI's
own are faster. Importing this module starts MPI.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shanty.torch.buffers import spec
from shanty.torch.dtypes import Reduction
from shanty.torch.meeting import Channel

LEAST = 1 << 19
"""Bytes from which on bandwidth counts for more than the ring's 2 (n - 1) messages in a row."""


def pays(at: Channel, nbytes: int) -> bool:
    """Whether the ring is the way for a tensor of so many bytes."""
    return at.spread and nbytes >= LEAST


def all_reduce(at: Channel, flat: Tensor, how: Reduction) -> None:
    """`flat` becomes its reduction over all ranks; each part is added up on the way around."""
    counts = even_counts(flat.numel(), at.size)
    parts = torch.split(flat, counts)
    came = flat.new_empty(max(counts))
    right, left = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    for step in range(at.size - 1):
        out, into = parts[(at.rank - step) % at.size], parts[(at.rank - step - 1) % at.size]
        room = came[: into.numel()]
        at.comm.Sendrecv(spec(out), right, recvbuf=spec(room), source=left)
        how.op.Reduce_local(spec(room, how.datatype), spec(into, how.datatype))
    _pass_on(at, parts, first=(at.rank + 1) % at.size)


def all_gather(at: Channel, flat: Tensor, counts: Sequence[int]) -> None:
    """Every rank's own part of `flat` goes to all; counts: elements for each."""
    _pass_on(at, torch.split(flat, list(counts)), first=at.rank)


def exchange(at: Channel, source: Tensor, counts: Sequence[int], room: Tensor) -> None:
    """counts[r] elements of `source` go to rank r; room[r] becomes what it has for this rank."""
    parts = torch.split(source, list(counts))
    room[at.rank].copy_(parts[at.rank])
    for step in range(1, at.size):
        to, source_rank = (at.rank + step) % at.size, (at.rank - step) % at.size
        at.comm.Sendrecv(spec(parts[to]), to, recvbuf=spec(room[source_rank]), source=source_rank)


def even_counts(elements: int, ranks: int) -> list[int]:
    """So many elements, cut as evenly as can be."""
    least, more = divmod(elements, ranks)
    return [least + (rank < more) for rank in range(ranks)]


def _pass_on(at: Channel, parts: Sequence[Tensor], first: int) -> None:
    """Each part once around; this rank begins with parts[first]."""
    right, left = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    for step in range(at.size - 1):
        out, into = parts[(first - step) % at.size], parts[(first - step - 1) % at.size]
        at.comm.Sendrecv(spec(out), right, recvbuf=spec(into), source=left)
