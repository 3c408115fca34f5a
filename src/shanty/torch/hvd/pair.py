"""`Pair`: tensors of two ranks on one host, reduced through memory that both see. Starts MPI.

Each rank copies its tensors there, and adds the other's to its own, a piece at a time. Where the
two cores share a cache, little memory is best, which stays in that cache. Where they do not, each
has to fetch from the other's cache what was just written there, and much memory is better: most of
it is out of that cache when it is read. Which is the case nobody tells for sure, and a virtual
machine may be moved; so both are tried, now and then. What little memory is for many tensors, MPI's
own reduction is for a single one, which lies as it should.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch import collectives
from shanty.torch.buffers import readable, settle
from shanty.torch.dtypes import Reduction
from shanty.torch.hvd.plan import Part
from shanty.torch.meeting import Channel
from shanty.torch.shared import SharedMemory

Doing = Callable[[str], AbstractContextManager[object]]
"""Around what is done, for the timeline; takes Horovod's word for it."""

IN, REDUCE, OUT = "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"

MOST = 512 << 10
"""Bytes of a piece at most; larger tensors are cut."""

WEIGHTY = 4 << 20
"""Bytes of a reduction whose time tells something."""

_ALIGNMENT = 64  # bytes between the beginnings of two tensors, a multiple of
_NEAR, _FAR = 4, 32  # pieces that a window has room for; 4 is the least (`_Window.reduce`)
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

_NAN_STAYS = frozenset({"MIN", "MAX"})  # with torch; with MPI it may, and may not


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
        self._whole: dict[
            tuple[torch.dtype, int], list[Tensor]
        ] = {}  # views of slots that are full
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
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
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

    def _occupied(self, piece: _Piece) -> bool:
        """Whether the other may still read what lies in its slot."""
        return self._copied - self._used[piece.number % self.slots] < _NEAR

    def _vacate(self) -> None:
        assert self._shared is not None
        self._shared.meet()
        self._used = [self._copied - _NEAR] * self.slots

    def _copy(self, piece: _Piece, tensors: Sequence[Tensor]) -> _Copied:
        assert self._shared is not None
        own = [tensors[i] for i in piece.which]
        self._used[piece.number % self.slots] = self._copied
        self._copied += 1
        torch._foreach_copy_(piece.mine, own)
        return _Copied(own, piece.theirs, self._shared.arrive())


class _Choice:
    """Which window is the faster one, by the times that were seen. now: the one to go through; for
    a lone tensor the nearer one stands for MPI.
    """

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
    """How the tensors of a part go: made once by `Pair.course`.

    places: of each tensor by its number and, numbered on, of all that the large ones are cut into.
    cut: the numbers of those. lone: whether there is one tensor only. nbytes: of all.
    """

    def __init__(
        self, places: Sequence[tuple[int, _Place]], cut: Sequence[int], lone: bool, nbytes: int
    ) -> None:
        self.cut = cut
        self.lone = lone
        self.nbytes = nbytes
        self._places = places
        self._pieces: dict[int, list[_Piece]] = {}  # by the slots of a window

    def through(self, window: _Window) -> list[_Piece]:
        """What is reduced at a time there."""
        pieces = self._pieces.get(window.slots)
        if pieces is None:
            pieces = self._pieces[window.slots] = window.pieces(self._places)
        return pieces


class Pair:
    """For one process set of two ranks on one host, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._windows = {_NEAR: _Window(at, _NEAR)}
        self._choices = {lone: _Choice() for lone in (False, True)}  # those of rank 0 count
        self._pieces = Pieces(MOST)

    @property
    def usable(self) -> bool:
        """Whether there was memory for it, on both ranks."""
        return self._windows[_NEAR].usable

    def course(self, part: Part) -> Course:
        """That of the tensors of a part. Each keeps its place for whatever it is done with."""
        numbered: list[tuple[int, _Place]] = []
        cut: list[int] = []
        on = len(part.tensors)
        for i, (item, which) in enumerate(part.tensors):
            places = item.room[which]
            if places is None:
                places = item.room[which] = self._places(part.dtype, item.shapes[which])
            if len(places) > 1:
                cut.append(i)
                numbered += enumerate(places, on)
                on += len(places)
            else:
                numbered.append((i, places[0]))
        nbytes = sum(item.sizes[which] for item, which in part.tensors)
        return Course(numbered, cut, len(part.tensors) == 1, nbytes)

    def _places(self, dtype: torch.dtype, shape: torch.Size) -> list[_Place]:
        most, elements = MOST // dtype.itemsize, math.prod(shape)
        shapes = [shape]
        if elements > most:
            begins = range(0, elements, most)
            shapes = [torch.Size([min(most, elements - begin)]) for begin in begins]
        return [_Place(*self._pieces.place(dtype, math.prod(each)), dtype, each) for each in shapes]

    def reduce(
        self, course: Course, tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each tensor of the course becomes its reduction. tensors: of the whole part."""
        if course.nbytes < WEIGHTY:
            self._through(self._windows[_NEAR], course, tensors, how, doing)
            return
        choice = self._choices[course.lone]
        window = self._agreed(choice)
        course.through(window)  # what that takes for the first time is not to count
        begun = time.perf_counter()
        self._through(window, course, tensors, how, doing)
        choice.saw((time.perf_counter() - begun) / course.nbytes)

    def _agreed(self, choice: _Choice) -> _Window:
        """The window that rank 0 chose, or the usual one if there was no memory for another."""
        word = array("B", [choice.now])
        self._at.comm.Bcast(word, 0)
        window = self._windows.get(word[0])
        if window is None:
            window = self._windows[word[0]] = _Window(self._at, word[0])
        return window if window.usable else self._windows[_NEAR]

    def _through(
        self,
        window: _Window,
        course: Course,
        tensors: Sequence[Tensor],
        how: Reduction,
        doing: Doing,
    ) -> None:
        if course.lone and window.slots == _NEAR and how.name not in _NAN_STAYS:
            with doing(REDUCE):
                collectives.all_reduce(self._at, tensors, how)
            return
        given = [tensors[i] for i in course.cut]
        dense = [readable(each) for each in given]
        if given:
            most = MOST // given[0].itemsize
            parts = [part for each in dense for part in torch.split(each.view(-1), most)]
            tensors = [*tensors, *parts]
        window.reduce(course.through(window), tensors, how, doing)
        for each, tensor in zip(dense, given, strict=True):
            settle(each, tensor)


def _divide(tensors: list[Tensor], ranks: int) -> None:
    """Make averages of sums; those of integers are cut off."""
    if tensors[0].is_floating_point():
        torch._foreach_div_(tensors, ranks)
        return
    for each in tensors:
        each.div_(ranks, rounding_mode="trunc")
