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
from mpi4py import MPI
from torch import Tensor

from shanty.torch import collectives, pages
from shanty.torch.dtypes import Reduction
from shanty.torch.hvd.plan import Item, Part
from shanty.torch.meeting import Channel
from shanty.torch.ring import even_counts
from shanty.torch.shared import SharedMemory

_ROOM = 2 << 20  # bytes of a rank's room
_SLOTS = 4  # into which two ranks divide each; more of them take half a room at a time
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

_Copied = tuple[list[Tensor], list[Tensor], MPI.Request]
"""Tensors of this rank, the other's, and the meeting after which those can be read."""


class _Place(NamedTuple):
    """Where a tensor lies in the rooms: in which piece, and where that has `end` elements so far.

    mine: in this rank's room. theirs: in the room of the other one of two ranks; else the sum.
    """

    piece: int
    end: int
    mine: Tensor
    theirs: Tensor


class _Piece:
    """Tensors that are reduced at a time, by their places among those of the part."""

    def __init__(self, number: int, found: Sequence[tuple[int, _Place]]) -> None:
        self.number = number
        self.which = [i for i, _ in found]
        self.length = max([place.end for _, place in found])
        self.mine = [place.mine for _, place in found]
        self.theirs = [place.theirs for _, place in found]


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
        self._copied = 0  # pieces so far
        self._used = [-_SLOTS] * _SLOTS  # by which of them each slot was used last
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
        most = _BUFFERED if self._at.spread else self._most(how)
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
        return _Layout(alone, fused, [_Piece(*each) for each in found_in.items()], nbytes)

    # ---- through shared memory ---------------------------------------------------------------

    def _shareable(self, tensor: Tensor, part: Part, how: Reduction) -> bool:
        if not tensor.is_cpu or part.dtype not in _SHARED or how.factor is not None:
            return False
        if not self._tried:
            self._tried = True
            self._shared = SharedMemory.form(self._at.comm, _ROOM)
        return self._shared is not None

    def _most(self, how: Reduction) -> int:
        """Bytes that are reduced at a time at most."""
        return _ROOM // (_SLOTS if self._paired(how) else 2)

    def _paired(self, how: Reduction) -> bool:
        return self._at.size == 2 and how.carrier is None

    def _rooms(self, dtype: torch.dtype) -> list[Tensor]:
        assert self._shared is not None
        return [room.view(dtype) for room in self._shared.rooms]

    def _place(self, item: Item, which: int, paired: bool) -> _Place:
        """A place for the next tensor, behind the last one of its type or where the next piece
        begins. Pieces take turns in the slots.
        """
        dtype, shape = item.kinds[which][0], item.shapes[which]
        rooms = self._rooms(dtype)
        most = len(rooms[0]) // (_SLOTS if paired else 2)
        elements = math.prod(shape)
        start = self._ends.get(dtype, 0)
        if start % most + elements > most:
            start = -(-start // most) * most
        align = _ALIGNMENT // dtype.itemsize
        self._ends[dtype] = -(-(start + elements) // align) * align
        piece, offset = divmod(start, most)
        slot = most * (piece % _SLOTS) if paired else 0
        other, its = (rooms[1 - self._at.rank], slot) if paired else (rooms[0], most)
        mine, theirs = (
            room[begin : begin + elements].view(shape)
            for room, begin in ((rooms[self._at.rank], slot + offset), (other, its + offset))
        )
        made = item.room[which] = _Place(piece, offset + elements, mine, theirs)
        return made

    def _add_the_other(
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Of two ranks each adds the other's to its own.

        They copy the next piece before they wait for each other over the last one. Who copies piece
        n has met the other over piece n - 2, which came there after it was through with n - 4.
        """
        assert self._shared is not None
        copied: _Copied | None = None
        for piece in pieces:
            own, slot = [tensors[i] for i in piece.which], piece.number % _SLOTS
            if self._copied - self._used[slot] < _SLOTS:
                self._add(copied, how, doing)
                copied = None
                self._shared.meet()
                self._used = [self._copied - _SLOTS] * _SLOTS
            self._used[slot] = self._copied
            self._copied += 1
            with doing(_IN):
                torch._foreach_copy_(piece.mine, own)
            meeting = self._shared.arrive()
            self._add(copied, how, doing)
            copied = own, piece.theirs, meeting
        self._add(copied, how, doing)

    def _add(self, copied: _Copied | None, how: Reduction, doing: Doing) -> None:
        if copied is None:
            return
        own, theirs, meeting = copied
        with doing(_REDUCE):
            meeting.Wait()
        with doing(_OUT):
            _ADDED[how.name](own, theirs)
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
                torch._foreach_copy_(piece.mine, own)
            with doing(_REDUCE):
                shared.meet()
                self._fold(piece.length, own[0].dtype, how)
                shared.meet()
            with doing(_OUT):
                torch._foreach_copy_(own, piece.theirs)
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
