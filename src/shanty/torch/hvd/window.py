"""`Window`: memory that two ranks on one host see, and reduce tensors through. Starts MPI.

What lies where in it (`Pieces`) is the same for both, and who may write where the other still reads
follows from their meetings (`Window.reduce`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch.dtypes import Reduction
from shanty.torch.meeting import Channel
from shanty.torch.shared import SharedMemory

Doing = Callable[[str], AbstractContextManager[object]]
"""Around what is done, for the timeline; takes Horovod's word for it."""

IN, REDUCE, OUT = "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"

MOST = 512 << 10
"""Bytes of a piece at most; larger tensors are cut."""

LEAST = 4
"""Pieces that a window must have room for (`Window.reduce`)."""

_ALIGNMENT = 64  # bytes between the beginnings of two tensors, a multiple of

_COMBINED: dict[str, Callable[[list[Tensor], list[Tensor]], None]] = {
    "SUM": torch._foreach_add_,
    "AVG": torch._foreach_add_,
    "PRODUCT": torch._foreach_mul_,
    "MIN": torch._foreach_minimum_,
    "MAX": torch._foreach_maximum_,
}


class Pieces:
    """Where tensors lie that are reduced a piece at a time: each behind the last one of its type,
    or where the next piece begins. most: bytes of a piece, which no tensor has more of.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: dict[torch.dtype, int] = {}  # elements so far

    def place(self, dtype: torch.dtype, elements: int) -> tuple[int, int]:
        """For the next tensor: its piece, and the elements before it there."""
        most = self._most // dtype.itemsize
        start = self._ends.get(dtype, 0)
        if start % most + elements > most:
            start = -(-start // most) * most
        align = _ALIGNMENT // dtype.itemsize
        self._ends[dtype] = -(-(start + elements) // align) * align
        return divmod(start, most)


class Piece:
    """Tensors that are copied at a time. which: their places among all; mine, theirs: where they
    lie in the rooms of this rank and of the other.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.which: list[int] = []
        self.mine: list[Tensor] = []
        self.theirs: list[Tensor] = []


class _Copied(NamedTuple):
    """Tensors that this rank has copied, what the other copies, and that it has."""

    own: list[Tensor]
    theirs: list[Tensor]
    meeting: MPI.Request

    def combine(self, how: Reduction) -> None:
        """Reduce them, once both have copied theirs."""
        self.meeting.Wait()
        _COMBINED[how.name](self.own, self.theirs)
        if how.average:
            _divide(self.own, 2)


class Place:
    """Where a tensor lies: in which piece, and how many elements after its beginning.

    views: by the slots of a window, of it in this rank's room and in the other's.
    """

    def __init__(self, piece: int, offset: int, dtype: torch.dtype, shape: torch.Size) -> None:
        self.piece = piece
        self.offset = offset
        self.dtype = dtype
        self.shape = shape
        self.views: dict[int, list[Tensor]] = {}


class Window:
    """Memory that both see, cut into slots in which pieces take turns."""

    def __init__(self, at: Channel, slots: int) -> None:
        self.slots = slots
        self._rank = at.rank
        self._shared = SharedMemory.form(at.comm, slots * MOST)
        # (dtype, slot) → views of the whole slot
        self._whole: dict[tuple[torch.dtype, int], list[Tensor]] = {}
        self._copied = 0  # pieces so far
        self._used = [-LEAST] * slots  # by which of them each slot was used last

    @property
    def usable(self) -> bool:
        """Whether there was memory for it, on both ranks."""
        return self._shared is not None

    def pieces(self, places: Sequence[tuple[int, Place]]) -> list[Piece]:
        """Of tensors with these numbers and places."""
        made: dict[int, Piece] = {}
        for i, place in places:
            if self.slots not in place.views:
                place.views[self.slots] = self._views(place)
            piece = made.setdefault(place.piece, Piece(place.piece))
            piece.which.append(i)
            mine, theirs = place.views[self.slots]
            piece.mine.append(mine)
            piece.theirs.append(theirs)
        return list(made.values())

    def _views(self, place: Place) -> list[Tensor]:
        slot, most = place.piece % self.slots, MOST // place.dtype.itemsize
        if place.shape != torch.Size([most]):
            return self._viewed(place.dtype, slot * most + place.offset, place.shape)
        key = place.dtype, slot
        if key not in self._whole:
            self._whole[key] = self._viewed(place.dtype, slot * most, place.shape)
        return self._whole[key]

    def _viewed(self, dtype: torch.dtype, begin: int, shape: torch.Size) -> list[Tensor]:
        assert self._shared is not None
        end = begin + math.prod(shape)
        rooms = self._shared.rooms[self._rank], self._shared.rooms[1 - self._rank]
        return [room.view(dtype)[begin:end].view(shape) for room in rooms]

    def reduce(
        self, pieces: Sequence[Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each tensor becomes its reduction.

        A piece is copied before the ranks wait for each other over the one before. Who copies piece
        n has met the other over n - 2, which came to that when it was through with n - 4.
        """
        with doing(IN):
            if self._occupied(pieces[0]):
                self._vacate()
            copied = self._copy(pieces[0], tensors)
        with doing(REDUCE):
            for piece in pieces[1:]:
                if self._occupied(piece):
                    copied.combine(how)
                    self._vacate()
                    copied = self._copy(piece, tensors)
                else:
                    before, copied = copied, self._copy(piece, tensors)
                    before.combine(how)
            copied.meeting.Wait()
        with doing(OUT):
            copied.combine(how)

    def _occupied(self, piece: Piece) -> bool:
        """Whether the other may still read what lies in its slot."""
        return self._copied - self._used[piece.number % self.slots] < LEAST

    def _vacate(self) -> None:
        assert self._shared is not None
        self._shared.meet()
        self._used = [self._copied - LEAST] * self.slots

    def _copy(self, piece: Piece, tensors: Sequence[Tensor]) -> _Copied:
        assert self._shared is not None
        own = [tensors[i] for i in piece.which]
        self._used[piece.number % self.slots] = self._copied
        self._copied += 1
        torch._foreach_copy_(piece.mine, own)
        return _Copied(own, piece.theirs, self._shared.arrive())


def _divide(tensors: list[Tensor], ranks: int) -> None:
    """Make averages of sums; those of integers are cut off."""
    if tensors[0].is_floating_point():
        torch._foreach_div_(tensors, ranks)
        return
    for each in tensors:
        each.div_(ranks, rounding_mode="trunc")
