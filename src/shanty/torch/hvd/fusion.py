"""`Fusion`: many tensors reduced as one. Starts MPI.

Within a host they go through memory that the ranks share, a piece at a time. Two ranks each add the
other's to their own (`pair`). More ranks, and half precision, share the sum out: each makes a part
of it, which all then take. Between hosts they go through one buffer,
and over the network as one (Horovod's tensor fusion).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shanty.torch import collectives, pages
from shanty.torch.dtypes import Reduction
from shanty.torch.hvd import pair
from shanty.torch.hvd.pair import Course, Pair
from shanty.torch.hvd.plan import Item, Part
from shanty.torch.hvd.window import IN, OUT, REDUCE, Doing, Pieces
from shanty.torch.meeting import Channel
from shanty.torch.ring import even_counts
from shanty.torch.shared import SharedMemory

_HALF = 1 << 20  # bytes of half a rank's room: the most that is reduced at a time
_BUFFERED = 8 << 20  # bytes from which on a tensor goes over the network by itself
_SHARED = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
)


class _Place(NamedTuple):
    """Where a tensor lies in the rooms: in which piece, and where that has `end` elements so far.

    given: in this rank's room. total: the sum of all.
    """

    piece: int
    end: int
    given: Tensor
    total: Tensor


class _Piece:
    """Tensors that are reduced at a time, by their places among those of the part."""

    def __init__(self, found: Sequence[tuple[int, _Place]]) -> None:
        self.which = [i for i, _ in found]
        self.length = max([place.end for _, place in found])
        self.given = [place.given for _, place in found]
        self.total = [place.total for _, place in found]


@dataclass
class _Layout:
    """How a part is reduced: which tensors by themselves, and which in which pieces or, if there
    is no shared memory, through a buffer. times: how often it was; nbytes: of the fused ones.
    """

    alone: Sequence[int]
    fused: Sequence[int]
    pieces: Course | list[_Piece] | None
    nbytes: int
    times: int = 0


class Fusion:
    """For one process set, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._pair: Pair | None = None
        self._shared: SharedMemory | None = None
        self._tried = False  # to share memory
        self._places = Pieces(_HALF)
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
            with doing(REDUCE):
                collectives.all_reduce(self._at, [tensors[i] for i in alone], how)
        if not fused:
            return
        layout.times += 1
        if layout.times == pages.OFTEN and layout.nbytes >= pages.LEAST and tensors[0].is_cpu:
            pages.widen([tensors[i] for i in fused])
        if pieces is None:
            self._through_a_buffer([tensors[i] for i in fused], how, doing)
        elif isinstance(pieces, Course):
            assert self._pair is not None
            self._pair.reduce(pieces, tensors, how, doing)
        else:
            self._share_the_sum(pieces, tensors, how, doing)

    def _layout(self, part: Part, first: Tensor, how: Reduction) -> _Layout:
        at = self._at
        sizes = [item.sizes[which] for item, which in part.tensors]
        shareable = first.is_cpu and part.dtype in _SHARED and how.factor is None
        shareable = shareable and at.size > 1 and not at.spread
        paired = at.size == 2 and how.carrier is None
        if shareable and paired and (len(sizes) > 1 or sizes[0] >= pair.WEIGHTY):
            self._pair = self._pair or Pair(at)
            if self._pair.usable:
                return _Layout([], range(len(sizes)), self._pair.course(part), sum(sizes))
        most = _BUFFERED if at.spread else _HALF
        alone = [i for i, size in enumerate(sizes) if size > most]
        fused = [i for i, size in enumerate(sizes) if size <= most]
        if len(fused) == 1:
            alone, fused = [*alone, *fused], []
        made = _Layout(alone, fused, None, sum(sizes[i] for i in fused))
        if not fused or not shareable or paired:
            return made
        if not self._tried:
            self._tried = True
            self._shared = SharedMemory.form(at.comm, 2 * _HALF)
        if self._shared is not None:
            made.pieces = self._pieces(part, fused)
        return made

    # ---- through shared memory ---------------------------------------------------------------

    def _pieces(self, part: Part, fused: Sequence[int]) -> list[_Piece]:
        found_in: dict[int, list[tuple[int, _Place]]] = {}
        for i in fused:
            item, which = part.tensors[i]
            place = item.room[which] or self._place(item, which)
            found_in.setdefault(place.piece, []).append((i, place))
        return [_Piece(found) for found in found_in.values()]

    def _rooms(self, dtype: torch.dtype) -> list[Tensor]:
        assert self._shared is not None
        return [room.view(dtype) for room in self._shared.rooms]

    def _place(self, item: Item, which: int) -> _Place:
        """A place for the next tensor, in a half room."""
        dtype, shape = item.kinds[which][0], item.shapes[which]
        elements = math.prod(shape)
        piece, begin = self._places.place(dtype, elements)
        end = begin + elements
        rooms = self._rooms(dtype)
        half = len(rooms[0]) // 2
        given = rooms[self._at.rank][begin:end].view(shape)
        total = rooms[0][half + begin : half + end].view(shape)
        made = item.room[which] = _Place(piece, end, given, total)
        return made

    def _share_the_sum(
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each rank makes a part of the sum, which all then take."""
        shared = self._shared
        assert shared is not None
        for piece in pieces:
            own = [tensors[i] for i in piece.which]
            with doing(IN):
                torch._foreach_copy_(piece.given, own)
            with doing(REDUCE):
                shared.meet()
                self._fold(piece.length, own[0].dtype, how)
                shared.meet()
            with doing(OUT):
                torch._foreach_copy_(own, piece.total)
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
        with doing(IN):
            torch._foreach_copy_(views, tensors)
        with doing(REDUCE):
            collectives.all_reduce(self._at, [together], how)
        with doing(OUT):
            torch._foreach_copy_(tensors, views)
