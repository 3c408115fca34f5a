"""`Pair`: many small tensors of two ranks on one host, reduced as one. Starts MPI.

Each rank copies its tensors to memory that both see, and adds the other's to its own, a piece at
a time. Where the two cores share a cache, little memory is best, which stays in that cache. Where
they do not, each has to fetch from the other's cache what was just written there, and much memory
is better: most of it is out of that cache when it is read. Which is the case nobody tells for sure,
and a virtual machine may be moved; so both are tried, now and then.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch.dtypes import Reduction
from shanty.torch.hvd.plan import Part
from shanty.torch.meeting import Channel
from shanty.torch.shared import SharedMemory

Doing = Callable[[str], AbstractContextManager[object]]
"""Around what is done, for the timeline; takes Horovod's word for it."""

IN, REDUCE, OUT = "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"

MOST = 512 << 10
"""Bytes of a piece at most, and so of a tensor."""

_ALIGNMENT = 64  # bytes between the beginnings of two tensors, a multiple of
_NEAR, _FAR = 4, 32  # pieces that a window has room for; 4 is the least (`_Window.reduce`)
_WEIGHTY = 4 << 20  # bytes of a reduction whose time tells something
_TRIAL = 2  # reductions through the other window, to see
_SOONEST, _LATEST = 8, 64  # reductions after which it is tried again: later each time for nothing
_SLOWER = 1.5  # times as slow as it was, so that it is tried as soon as can be
_BETTER = 0.9  # of the time, for which it is worth changing

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


class _Piece:
    """Tensors that are copied at a time. which: their places among all; mine, theirs: where they
    lie in the rooms of this rank and of the other.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.which: list[int] = []
        self.mine: list[Tensor] = []
        self.theirs: list[Tensor] = []


class _Place:
    """Where a tensor lies: in which piece, and how many elements after its beginning.

    views: by the slots of a window, of it in this rank's room and in the other's.
    """

    def __init__(self, piece: int, offset: int, dtype: torch.dtype, shape: torch.Size) -> None:
        self.piece = piece
        self.offset = offset
        self.dtype = dtype
        self.shape = shape
        self.views: dict[int, list[Tensor]] = {}


class _Window:
    """Memory that both see, cut into slots in which pieces take turns."""

    def __init__(self, at: Channel, slots: int) -> None:
        self.slots = slots
        self._rank = at.rank
        self._shared = SharedMemory.form(at.comm, slots * MOST)
        self._copied = 0  # pieces so far
        self._used = [-_NEAR] * slots  # by which of them each slot was used last

    @property
    def usable(self) -> bool:
        """Whether there was memory for it, on both ranks."""
        return self._shared is not None

    def pieces(self, places: Sequence[tuple[int, _Place]]) -> list[_Piece]:
        """Of tensors with these numbers and places."""
        made: dict[int, _Piece] = {}
        for i, place in places:
            if self.slots not in place.views:
                place.views[self.slots] = self._views(place)
            piece = made.setdefault(place.piece, _Piece(place.piece))
            piece.which.append(i)
            mine, theirs = place.views[self.slots]
            piece.mine.append(mine)
            piece.theirs.append(theirs)
        return list(made.values())

    def _views(self, place: _Place) -> list[Tensor]:
        assert self._shared is not None
        begin = place.piece % self.slots * (MOST // place.dtype.itemsize) + place.offset
        end = begin + math.prod(place.shape)
        rooms = self._shared.rooms[self._rank], self._shared.rooms[1 - self._rank]
        return [room.view(place.dtype)[begin:end].view(place.shape) for room in rooms]

    def reduce(
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each tensor becomes its reduction.

        A piece is copied before the ranks wait for each other over the one before. Who copies piece
        n has met the other over n - 2, which came to that when it was through with n - 4.
        """
        shared = self._shared
        assert shared is not None
        copied: tuple[list[Tensor], list[Tensor], MPI.Request] | None = None
        for piece in pieces:
            own, slot = [tensors[i] for i in piece.which], piece.number % self.slots
            if self._copied - self._used[slot] < _NEAR:
                if copied is not None:
                    _combine(*copied, how, doing)
                    copied = None
                shared.meet()
                self._used = [self._copied - _NEAR] * self.slots
            self._used[slot] = self._copied
            self._copied += 1
            with doing(IN):
                torch._foreach_copy_(piece.mine, own)
            meeting = shared.arrive()
            if copied is not None:
                _combine(*copied, how, doing)
            copied = own, piece.theirs, meeting
        if copied is not None:
            _combine(*copied, how, doing)


class _Choice:
    """Which window is the faster one, by the times that were seen. now: the one to go through."""

    def __init__(self) -> None:
        self.now = self._best = _NEAR
        self._usual = math.inf  # time of the best when it was last compared
        self._times: list[float] = []  # of the last reductions through the window of now
        self._since = 0  # reductions since that was changed
        self._patience = _SOONEST

    def saw(self, seconds: float) -> None:
        """A byte took so long on the average."""
        self._times = [*self._times, seconds][-_TRIAL:]
        self._since += 1
        took = min(self._times)
        if self.now == self._best:
            slower = self._since >= _SOONEST and took > _SLOWER * self._usual
            if slower or self._since >= self._patience:
                self._usual = took
                self._go(_FAR if self._best == _NEAR else _NEAR)
        elif self._since == _TRIAL:
            better = took < _BETTER * self._usual
            if better:
                self._best, self._usual = self.now, took
            self._patience = _SOONEST if better else min(2 * self._patience, _LATEST)
            self._go(self._best)

    def _go(self, window: int) -> None:
        self.now = window
        self._since = 0
        self._times = []


class Course:
    """How some tensors of a part go: made once by `Pair.course`.

    pieces: by the slots of a window. nbytes: of all.
    """

    def __init__(self, places: Sequence[tuple[int, _Place]], nbytes: int) -> None:
        self.places = places
        self.nbytes = nbytes
        self.pieces: dict[int, list[_Piece]] = {}


class Pair:
    """For one process set of two ranks on one host, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._windows = {_NEAR: _Window(at, _NEAR)}
        self._choice = _Choice()  # that of rank 0 counts
        self._pieces = Pieces(MOST)

    @property
    def usable(self) -> bool:
        """Whether there was memory for it, on both ranks."""
        return self._windows[_NEAR].usable

    def course(self, part: Part, which: Sequence[int]) -> Course:
        """That of these tensors of a part. Each keeps its place for whatever it is done with."""
        places: list[tuple[int, _Place]] = []
        for i in which:
            item, number = part.tensors[i]
            place = item.room[number]
            if place is None:
                shape = item.shapes[number]
                at = self._pieces.place(part.dtype, math.prod(shape))
                place = item.room[number] = _Place(*at, part.dtype, shape)
            places.append((i, place))
        nbytes = sum(item.sizes[number] for item, number in (part.tensors[i] for i in which))
        return Course(places, nbytes)

    def reduce(
        self, course: Course, tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each tensor of the course becomes its reduction. tensors: of the whole part."""
        if course.nbytes < _WEIGHTY:
            self._go(self._windows[_NEAR], course, tensors, how, doing)
            return
        window = self._agreed()
        begun = time.perf_counter()
        self._go(window, course, tensors, how, doing)
        self._choice.saw((time.perf_counter() - begun) / course.nbytes)

    def _agreed(self) -> _Window:
        """The window that rank 0 chose, or the usual one if there was no memory for another."""
        word = array("B", [self._choice.now])
        self._at.comm.Bcast(word, 0)
        window = self._windows.get(word[0])
        if window is None:
            window = self._windows[word[0]] = _Window(self._at, word[0])
        return window if window.usable else self._windows[_NEAR]

    def _go(
        self,
        window: _Window,
        course: Course,
        tensors: Sequence[Tensor],
        how: Reduction,
        doing: Doing,
    ) -> None:
        pieces = course.pieces.get(window.slots)
        if pieces is None:
            pieces = course.pieces[window.slots] = window.pieces(course.places)
        window.reduce(pieces, tensors, how, doing)


def _combine(
    own: list[Tensor], theirs: list[Tensor], meeting: MPI.Request, how: Reduction, doing: Doing
) -> None:
    with doing(REDUCE):
        meeting.Wait()
    with doing(OUT):
        _COMBINED[how.name](own, theirs)
        if how.average:
            _divide(own, 2)


def _divide(tensors: list[Tensor], ranks: int) -> None:
    """Make averages of sums; those of integers are cut off."""
    if tensors[0].is_floating_point():
        torch._foreach_div_(tensors, ranks)
        return
    for each in tensors:
        each.div_(ranks, rounding_mode="trunc")
