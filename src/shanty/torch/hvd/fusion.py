"""`Fusion`: many small tensors reduced as one. Starts MPI.

Within a host they go through memory that the ranks share, a piece at a time that stays in the
caches. Two ranks each add the other's to their own. More ranks, and half precision, share the sum
out: each makes a part of it, which all then take. Between hosts they go through one buffer, and
over the network as one (Horovod's tensor fusion).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shanty.torch import collectives, pages
from shanty.torch.dtypes import Reduction
from shanty.torch.hvd.plan import Item, Part
from shanty.torch.meeting import Channel
from shanty.torch.ring import even_counts
from shanty.torch.shared import SharedMemory

_HALF = 1 << 20  # bytes of half a rank's room: the most that is reduced at a time
_BUFFERED = 8 << 20  # bytes from which on a tensor goes over the network by itself
_ALIGNMENT = 64  # bytes between the beginnings of two tensors, a multiple of
_SHARED = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
)
_ADDED: dict[str, Callable[[list[Tensor], list[Tensor]], None]] = {
    "SUM": torch._foreach_add_,
    "AVG": torch._foreach_add_,
    "PRODUCT": torch._foreach_mul_,
    "MIN": torch._foreach_minimum_,
    "MAX": torch._foreach_maximum_,
}
_IN, _REDUCE, _OUT = "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"

Doing = Callable[[str], AbstractContextManager[object]]
"""Around what is done, for the timeline; takes Horovod's word for it."""


class _Place(NamedTuple):
    """Where a tensor lies in the rooms: in which piece, and where that has `end` elements so far.

    mine: in each half of this rank's room. theirs: the same of the other one of two ranks; else
    the sum.
    """

    piece: int
    end: int
    mine: tuple[Tensor, Tensor]
    theirs: tuple[Tensor, Tensor]


class _Piece:
    """Tensors that are reduced at a time, by their places among those of the part."""

    def __init__(self, found: Sequence[tuple[int, _Place]]) -> None:
        self.which = [i for i, _ in found]
        places = [place for _, place in found]
        self.length = max([each.end for each in places])
        self.mine = [each.mine[0] for each in places], [each.mine[1] for each in places]
        self.theirs = [each.theirs[0] for each in places], [each.theirs[1] for each in places]


@dataclass
class _Layout:
    """How a part is reduced: which tensors by themselves, and which in which pieces or, if there
    is no shared memory, through a buffer. times: how often it was; nbytes: of the fused ones.
    """

    alone: list[int]
    fused: list[int]
    pieces: list[_Piece] | None
    nbytes: int
    times: int = 0


class Fusion:
    """For one process set, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._shared: SharedMemory | None = None
        self._tried = at.spread or at.size == 1
        self._half = 0  # of the room that is written to next
        self._ends: dict[torch.dtype, int] = {}  # elements of the pieces so far
        self._buffers: dict[Hashable, Tensor] = {}

    def all_reduce(
        self, part: Part, tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each tensor of the part becomes its reduction."""
        if part.layout is None:
            part.layout = self._layout(part, tensors[0], how)
        layout: _Layout = part.layout
        alone, fused, pieces = layout.alone, layout.fused, layout.pieces
        if alone:
            with doing(_REDUCE):
                collectives.all_reduce(self._at, [tensors[i] for i in alone], how)
        if not fused:
            return
        layout.times += 1
        if layout.times == pages.OFTEN and layout.nbytes >= pages.LEAST and tensors[0].is_cpu:
            pages.widen([tensors[i] for i in fused])
        if pieces is None:
            self._through_a_buffer([tensors[i] for i in fused], how, doing)
        elif self._paired(how):
            self._add_the_other(pieces, tensors, how, doing)
        else:
            self._share_the_sum(pieces, tensors, how, doing)

    def _layout(self, part: Part, first: Tensor, how: Reduction) -> _Layout:
        most = _BUFFERED if self._at.spread else _HALF
        sizes = [item.sizes[which] for item, which in part.tensors]
        alone = [i for i, size in enumerate(sizes) if size > most]
        fused = [i for i, size in enumerate(sizes) if size <= most]
        if len(fused) == 1:
            alone, fused = [*alone, *fused], []
        nbytes = sum(sizes[i] for i in fused)
        if not fused or not self._shareable(first, part, how):
            return _Layout(alone, fused, None, nbytes)
        found_in: dict[int, list[tuple[int, _Place]]] = {}
        for i in fused:
            item, which = part.tensors[i]
            place = item.room[which] or self._place(item, which, self._paired(how))
            found_in.setdefault(place.piece, []).append((i, place))
        return _Layout(alone, fused, [_Piece(found) for found in found_in.values()], nbytes)

    # ---- through shared memory ---------------------------------------------------------------

    def _shareable(self, tensor: Tensor, part: Part, how: Reduction) -> bool:
        if not tensor.is_cpu or part.dtype not in _SHARED or how.factor is not None:
            return False
        if not self._tried:
            self._tried = True
            self._shared = SharedMemory.form(self._at.comm, 2 * _HALF)
        return self._shared is not None

    def _paired(self, how: Reduction) -> bool:
        return self._at.size == 2 and how.carrier is None

    def _rooms(self, dtype: torch.dtype) -> list[Tensor]:
        assert self._shared is not None
        return [room.view(dtype) for room in self._shared.rooms]

    def _place(self, item: Item, which: int, paired: bool) -> _Place:
        """A place for the next tensor, behind all others of its type. Pieces that hold half a
        room follow one another, and take turns in the rooms.
        """
        dtype, shape = item.kinds[which][0], item.shapes[which]
        rooms = self._rooms(dtype)
        half = len(rooms[0]) // 2
        elements = math.prod(shape)
        start = self._ends.get(dtype, 0)
        if start % half + elements > half:
            start = -(-start // half) * half
        align = _ALIGNMENT // dtype.itemsize
        self._ends[dtype] = -(-(start + elements) // align) * align
        offset = start % half
        other = rooms[1 - self._at.rank] if paired else rooms[0]

        def both(room: Tensor) -> tuple[Tensor, Tensor]:
            first, second = (
                room[begin : begin + elements].view(shape) for begin in (offset, half + offset)
            )
            return first, second

        mine, theirs = both(rooms[self._at.rank]), both(other)
        theirs = theirs if paired else (theirs[1], theirs[1])
        made = item.room[which] = _Place(start // half, offset + elements, mine, theirs)
        return made

    def _add_the_other(
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Of two ranks each adds the other's to its own."""
        assert self._shared is not None
        for piece in pieces:
            own, half = [tensors[i] for i in piece.which], self._half
            # The other rank may still read the half that was written to last. It is through with
            # that when it comes to the meeting over this half.
            self._half = 1 - half
            with doing(_IN):
                torch._foreach_copy_(piece.mine[half], own)
            with doing(_REDUCE):
                self._shared.meet()
            with doing(_OUT):
                _ADDED[how.name](own, piece.theirs[half])
                if how.average:
                    _divide(own, 2)

    def _share_the_sum(
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each rank makes a part of the sum, which all then take."""
        shared = self._shared
        assert shared is not None
        shared.meet()  # after what two ranks read of each other
        for piece in pieces:
            own = [tensors[i] for i in piece.which]
            with doing(_IN):
                torch._foreach_copy_(piece.mine[0], own)
            with doing(_REDUCE):
                shared.meet()
                self._fold(piece.length, own[0].dtype, how)
                shared.meet()
            with doing(_OUT):
                torch._foreach_copy_(own, piece.theirs[0])
        shared.meet()

    def _fold(self, length: int, dtype: torch.dtype, how: Reduction) -> None:
        """This rank's part of the sum over all rooms, to the second half of the first room."""
        at, rooms = self._at, self._rooms(dtype)
        counts = even_counts(length, at.size)
        start = sum(counts[: at.rank])
        mine = slice(start, start + counts[at.rank])
        total = rooms[0][len(rooms[0]) // 2 :][mine]
        carried = total if how.carrier is None else torch.empty_like(total, dtype=how.carrier)
        how.fold([room[mine] for room in rooms], carried)
        how.divide(carried, at.size)
        if carried is not total:
            total.copy_(carried)

    # ---- through a buffer --------------------------------------------------------------------

    def _through_a_buffer(self, tensors: list[Tensor], how: Reduction, doing: Doing) -> None:
        place = tensors[0].dtype, tensors[0].device
        sizes = [each.numel() for each in tensors]
        length = sum(sizes)
        buffer = self._buffers.get(place)
        if buffer is None or len(buffer) < length:
            buffer = self._buffers[place] = torch.empty(length, dtype=place[0], device=place[1])
        together = buffer[:length]
        parts = torch.split(together, sizes)
        views = [part.view(each.shape) for part, each in zip(parts, tensors, strict=True)]
        with doing(_IN):
            torch._foreach_copy_(views, tensors)
        with doing(_REDUCE):
            collectives.all_reduce(self._at, [together], how)
        with doing(_OUT):
            torch._foreach_copy_(tensors, views)


def _divide(tensors: list[Tensor], ranks: int) -> None:
    if tensors[0].is_floating_point():
        torch._foreach_div_(tensors, ranks)
        return
    for each in tensors:
        each.div_(ranks, rounding_mode="trunc")
