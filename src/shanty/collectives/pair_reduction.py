"""`PairReduction`: tensors of two ranks on one host, reduced through shared memory. Starts MPI.

Each rank copies its tensors to a segment, and adds the other's to its own, a piece at a time. Where
the two cores share a cache, little memory is best, which stays in that cache. Where they do not,
each has to fetch from the other's cache what was just written there, and much memory is better:
most of it is out of that cache when it is read. Which is the case nobody tells for sure, and a
virtual machine may be moved; so both are tried, now and then. What little memory is for many
tensors, MPI's own reduction is for a single one, which lies as it should.

The places in a segment (`Pieces`) are the same for both ranks. Who may write where the other still
reads follows from their arrivals (`Segment.reduce`).
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from shanty.collectives import operations
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Kernels, Reduction, Tensor
from shanty.collectives.plan import Part
from shanty.collectives.shared_memory import share

Doing = Callable[[str], AbstractContextManager[object]]
"""Around what is done, for the timeline; takes Horovod's word for it."""

IN, REDUCE, OUT = "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"

MOST = 512 << 10
"""Bytes of a piece at most; larger tensors are cut."""

LEAST = 4
"""Pieces that a segment must have room for (`Segment.reduce`)."""

_ALIGNMENT = 64  # bytes between the beginnings of two tensors, a multiple of

WEIGHTY = 4 << 20
"""Bytes of a reduction whose time tells something."""

_NEAR, _FAR = LEAST, 32  # pieces that the segments have room for: little and much memory
_TRIAL = 2  # reductions through the other segment, to see
_SOONEST, _LATEST = 8, 64  # reductions after which it is tried again: later each time for nothing
_SLOWER = 1.5  # times as slow as it was, so that it is tried as soon as can be
_BETTER = 0.9  # of the time, for which it is worth changing
_NAN_STAYS = frozenset({"MIN", "MAX"})  # with torch; with MPI it may, and may not


class Pieces:
    """The places of tensors that are reduced a piece at a time: each behind the last one of its
    type, or where the next piece begins. most: bytes of a piece, which no tensor has more of.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: dict[Any, int] = {}  # elements so far

    def place(self, dtype: Any, elements: int) -> tuple[int, int]:
        """Find one for the next tensor: its piece, and the elements before it there."""
        most = self._most // dtype.itemsize
        start = self._ends.get(dtype, 0)
        if start % most + elements > most:
            start = -(-start // most) * most
        align = _ALIGNMENT // dtype.itemsize
        self._ends[dtype] = -(-(start + elements) // align) * align
        piece, offset = divmod(start, most)
        return piece, offset


@dataclass
class Piece:
    """Tensors that are copied at a time. which: their places among all; mine, theirs: where they
    lie in the rooms of this rank and of the other.
    """

    number: int
    which: list[int] = field(default_factory=list)
    mine: list[Tensor] = field(default_factory=list)
    theirs: list[Tensor] = field(default_factory=list)


_Copied = tuple[list[Tensor], list[Tensor], list[Tensor], MPI.Request]
"""Tensors that this rank has copied, what the other copies, where the results go, and this rank's
arrival.
"""


@dataclass
class Spot:
    """The place of a tensor: its piece, and the elements before it there.

    views: by the slots of a segment, of it in this rank's room and in the other's.
    """

    piece: int
    offset: int
    dtype: Any
    shape: tuple[int, ...]
    views: dict[int, list[Tensor]] = field(default_factory=dict)


class Segment:
    """Memory that both see, cut into slots in which pieces take turns.

    usable: whether there was memory for it, on both ranks.
    """

    def __init__(self, at: Channel, slots: int) -> None:
        self.slots = slots
        self._at = at
        self._kernels: Kernels = at.kernels
        rooms = share(at.comm, slots * MOST)
        self.usable = rooms is not None
        self._rooms = (rooms[at.rank], rooms[1 - at.rank]) if rooms else ()
        # (dtype, slot) → views of the whole slot
        self._whole: dict[tuple[Any, int], list[Tensor]] = {}
        self._copied = 0  # pieces so far
        self._used = [-LEAST] * slots  # by which of them each slot was used last

    def pieces(self, places: Sequence[tuple[int, Spot]]) -> list[Piece]:
        """Return those of tensors with these numbers and places."""
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

    def _views(self, place: Spot) -> list[Tensor]:
        slot, most = place.piece % self.slots, MOST // place.dtype.itemsize
        if place.shape != (most,):
            return self._viewed(place.dtype, slot * most + place.offset, place.shape)
        key = place.dtype, slot
        if key not in self._whole:
            self._whole[key] = self._viewed(place.dtype, slot * most, place.shape)
        return self._whole[key]

    def _viewed(self, dtype: Any, begin: int, shape: tuple[int, ...]) -> list[Tensor]:
        return [self._kernels.view(room, dtype, begin, shape) for room in self._rooms]

    def reduce(
        self,
        pieces: Sequence[Piece],
        given: Sequence[Tensor],
        tensors: Sequence[Tensor],
        how: Reduction,
        doing: Doing,
    ) -> None:
        """Each tensor becomes the reduction of what is given, which may be the tensor itself.

        A piece is copied before the ranks wait for each other over the one before. Who copies piece
        n has met the other over n - 2, which came to that when it was through with n - 4.
        """
        with doing(IN):
            if self._occupied(pieces[0]):
                self._vacate()
            copied = self._copy(pieces[0], given, tensors)
        with doing(REDUCE):
            for piece in pieces[1:]:
                if self._occupied(piece):
                    self._combine(copied, how)
                    self._vacate()
                    copied = self._copy(piece, given, tensors)
                else:
                    before, copied = copied, self._copy(piece, given, tensors)
                    self._combine(before, how)
            copied[-1].Wait()
        with doing(OUT):
            self._combine(copied, how)

    def _occupied(self, piece: Piece) -> bool:
        """Return true if the other may still read what lies in its slot."""
        return self._copied - self._used[piece.number % self.slots] < LEAST

    def _vacate(self) -> None:
        self._at.comm.Barrier()
        self._used = [self._copied - LEAST] * self.slots

    def _copy(self, piece: Piece, given: Sequence[Tensor], tensors: Sequence[Tensor]) -> _Copied:
        own = [given[i] for i in piece.which]
        into = own if given is tensors else [tensors[i] for i in piece.which]
        self._used[piece.number % self.slots] = self._copied
        self._copied += 1
        self._kernels.copy_all(piece.mine, own)
        return own, piece.theirs, into, self._at.comm.Ibarrier()

    def _combine(self, copied: _Copied, how: Reduction) -> None:
        """Reduce them, once both have copied theirs."""
        own, theirs, into, arrival = copied
        arrival.Wait()
        if into is own:
            self._kernels.combine(how.name, own, theirs)
        else:
            self._kernels.combine_into(how.name, own, theirs, into)
        if how.average:
            self._kernels.divide(into, 2)


class _Choice:
    """The choice of the faster segment, by the times that were seen. now: the one to go through;
    for a lone tensor the nearer one stands for MPI.
    """

    def __init__(self) -> None:
        self.now = self._best = _NEAR
        self._usual = math.inf  # time of the best when it was last compared
        self._times: list[float] = []  # of the last reductions through the segment of now
        self._since = 0  # reductions since that was changed
        self._patience = _SOONEST

    def saw(self, seconds: float) -> None:
        """Take note that a byte took so long on the average."""
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

    def _go(self, segment: int) -> None:
        self.now = segment
        self._since = 0
        self._times = []


@dataclass
class Schedule:
    """The pieces that the tensors of a part make: made once by `PairReduction.schedule`.

    places: of each tensor by its number and, numbered on, of all that the large ones are cut into.
    cut: the numbers of those. lone: whether there is one tensor only. nbytes: of all.
    """

    places: Sequence[tuple[int, Spot]]
    cut: Sequence[int]
    lone: bool
    nbytes: int
    _pieces: dict[int, list[Piece]] = field(default_factory=dict)  # by the slots of a segment

    def through(self, segment: Segment) -> list[Piece]:
        """Return what is reduced at a time there."""
        pieces = self._pieces.get(segment.slots)
        if pieces is None:
            pieces = self._pieces[segment.slots] = segment.pieces(self.places)
        return pieces


class PairReduction:
    """For one process set of two ranks on one host, and one thread. usable: as of its segment."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._segments = {_NEAR: Segment(at, _NEAR)}
        self.usable = self._segments[_NEAR].usable
        self._choices = {lone: _Choice() for lone in (False, True)}  # those of rank 0 count
        self._pieces = Pieces(MOST)

    def schedule(self, part: Part) -> Schedule:
        """Return that of the tensors of a part. Each keeps its place, whatever the others are."""
        numbered: list[tuple[int, Spot]] = []
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
        return Schedule(numbered, cut, len(part.tensors) == 1, nbytes)

    def _places(self, dtype: Any, shape: tuple[int, ...]) -> list[Spot]:
        most, elements = MOST // dtype.itemsize, math.prod(shape)
        shapes = [shape]
        if elements > most:
            begins = range(0, elements, most)
            shapes = [(min(most, elements - begin),) for begin in begins]
        return [Spot(*self._pieces.place(dtype, math.prod(each)), dtype, each) for each in shapes]

    def reduce(
        self,
        schedule: Schedule,
        given: Sequence[Tensor],
        tensors: Sequence[Tensor],
        how: Reduction,
        doing: Doing,
    ) -> None:
        """Each tensor of the schedule becomes the reduction of what is given, which may be the
        tensor itself. given, tensors: of the whole part.
        """
        if schedule.nbytes < WEIGHTY:
            self._through(self._segments[_NEAR], schedule, given, tensors, how, doing)
            return
        choice = self._choices[schedule.lone]
        segment = self._agreed(choice)
        schedule.through(segment)  # what that takes for the first time is not to count
        begun = time.perf_counter()
        self._through(segment, schedule, given, tensors, how, doing)
        choice.saw((time.perf_counter() - begun) / schedule.nbytes)

    def _agreed(self, choice: _Choice) -> Segment:
        """Return the segment that rank 0 chose; the usual one where memory for it was lacking."""
        word = array("B", [choice.now])
        self._at.comm.Bcast(word, 0)
        segment = self._segments.get(word[0])
        if segment is None:
            segment = self._segments[word[0]] = Segment(self._at, word[0])
        return segment if segment.usable else self._segments[_NEAR]

    def _through(
        self,
        segment: Segment,
        schedule: Schedule,
        given: Sequence[Tensor],
        tensors: Sequence[Tensor],
        how: Reduction,
        doing: Doing,
    ) -> None:
        kernels: Kernels = self._at.kernels
        if schedule.lone and segment.slots == _NEAR and how.name not in _NAN_STAYS:
            if given is not tensors:
                kernels.copy_all(tensors, given)
            with doing(REDUCE):
                operations.all_reduce(self._at, tensors, how)
            return
        large = [tensors[i] for i in schedule.cut]
        dense = [kernels.writable(each) for each in large]
        sources = given
        if given is tensors:
            dense = [kernels.readable(each) for each in large]
            tensors = sources = [*tensors, *self._cut(dense)]
        elif large:
            sources = [*given, *self._cut([kernels.readable(given[i]) for i in schedule.cut])]
            tensors = [*tensors, *self._cut(dense)]
        segment.reduce(schedule.through(segment), sources, tensors, how, doing)
        for each, tensor in zip(dense, large, strict=True):
            kernels.settle(each, tensor)

    def _cut(self, dense: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts of large tensors, as they go through a segment."""
        kernels: Kernels = self._at.kernels
        if not dense:
            return []
        most = MOST // dense[0].itemsize
        return [part for each in dense for part in kernels.split(kernels.flat(each), most)]
