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
from collections.abc import Sequence

import torch
from torch import Tensor

from shanty.torch import collectives
from shanty.torch.buffers import readable, settle
from shanty.torch.dtypes import Reduction
from shanty.torch.hvd.plan import Part
from shanty.torch.hvd.window import LEAST, MOST, REDUCE, Doing, Piece, Pieces, Place, Window
from shanty.torch.meeting import Channel

WEIGHTY = 4 << 20
"""Bytes of a reduction whose time tells something."""

_NEAR, _FAR = LEAST, 32  # pieces that the windows have room for: little and much memory
_TRIAL = 2  # reductions through the other window, to see
_SOONEST, _LATEST = 8, 64  # reductions after which it is tried again: later each time for nothing
_SLOWER = 1.5  # times as slow as it was, so that it is tried as soon as can be
_BETTER = 0.9  # of the time, for which it is worth changing
_NAN_STAYS = frozenset({"MIN", "MAX"})  # with torch; with MPI it may, and may not


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
        self, places: Sequence[tuple[int, Place]], cut: Sequence[int], lone: bool, nbytes: int
    ) -> None:
        self.cut = cut
        self.lone = lone
        self.nbytes = nbytes
        self._places = places
        self._pieces: dict[int, list[Piece]] = {}  # by the slots of a window

    def through(self, window: Window) -> list[Piece]:
        """What is reduced at a time there."""
        pieces = self._pieces.get(window.slots)
        if pieces is None:
            pieces = self._pieces[window.slots] = window.pieces(self._places)
        return pieces


class Pair:
    """For one process set of two ranks on one host, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._windows = {_NEAR: Window(at, _NEAR)}
        self._choices = {lone: _Choice() for lone in (False, True)}  # those of rank 0 count
        self._pieces = Pieces(MOST)

    @property
    def usable(self) -> bool:
        """Whether there was memory for it, on both ranks."""
        return self._windows[_NEAR].usable

    def course(self, part: Part) -> Course:
        """That of the tensors of a part. Each keeps its place for whatever it is done with."""
        numbered: list[tuple[int, Place]] = []
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

    def _places(self, dtype: torch.dtype, shape: torch.Size) -> list[Place]:
        most, elements = MOST // dtype.itemsize, math.prod(shape)
        shapes = [shape]
        if elements > most:
            begins = range(0, elements, most)
            shapes = [torch.Size([min(most, elements - begin)]) for begin in begins]
        return [Place(*self._pieces.place(dtype, math.prod(each)), dtype, each) for each in shapes]

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

    def _agreed(self, choice: _Choice) -> Window:
        """The window that rank 0 chose, or the usual one if there was no memory for another."""
        word = array("B", [choice.now])
        self._at.comm.Bcast(word, 0)
        window = self._windows.get(word[0])
        if window is None:
            window = self._windows[word[0]] = Window(self._at, word[0])
        return window if window.usable else self._windows[_NEAR]

    def _through(
        self,
        window: Window,
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
