"""Where tensors lie in shared memory, who may write there, and through how much of it they go."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch.distributed import ReduceOp

from shanty.collectives import pair_reduction
from shanty.collectives.pair_reduction import (
    _FAR,
    _LATEST,
    _NEAR,
    _SOONEST,
    _TRIAL,
    Piece,
    Pieces,
    Segment,
    _Choice,
)
from shanty.torch.kernels import reduction

MOST = 1024


@given(
    st.lists(
        st.tuples(st.sampled_from([torch.float32, torch.float64]), st.integers(0, MOST)),
        max_size=40,
    )
)
def test_tensors_of_a_type_lie_behind_each_other(drawn: list[tuple[torch.dtype, int]]) -> None:
    pieces = Pieces(MOST)
    ends: dict[torch.dtype, tuple[int, int]] = {}
    for dtype, nbytes in drawn:
        elements = nbytes // dtype.itemsize
        piece, offset = pieces.place(dtype, elements)
        begin, end = offset * dtype.itemsize, (offset + elements) * dtype.itemsize
        assert begin % 64 == 0
        assert end <= MOST
        assert (piece, begin) >= ends.get(dtype, (0, 0))
        ends[dtype] = piece, end


class Log:
    """What one of two ranks does, in its order; the other does the same. It stands for the memory
    that they share, and for their arrivals, which are numbered.
    """

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.arrivals = 0

    def Ibarrier(self) -> Log.Arrival:  # noqa: N802 (as in mpi4py)
        self.arrivals += 1
        self.done.append(("comes", self.arrivals))
        return Log.Arrival(self, self.arrivals)

    def Barrier(self) -> None:  # noqa: N802 (as in mpi4py)
        self.Ibarrier().Wait()

    class Arrival:
        def __init__(self, log: Log, number: int) -> None:
            self.log = log
            self.number = number

        def Wait(self) -> None:  # noqa: N802 (as in mpi4py)
            self.log.done.append(("has met", self.number))


@given(
    st.sampled_from([_NEAR, _FAR]),
    st.lists(st.lists(st.integers(0, 80), min_size=1, max_size=12, unique=True), max_size=12),
)
def test_nobody_writes_where_the_other_still_reads(slots: int, reductions: list[list[int]]) -> None:
    log = Log()
    kernels = SimpleNamespace(
        copy_all=lambda mine, _: log.done.append(("writes", mine[0])),
        combine=lambda _, __, theirs: log.done.append(("reads", theirs[0])),
    )
    with patch.object(pair_reduction, "share", lambda *_: [memoryview(b"")] * 2):
        made = Segment(SimpleNamespace(rank=0, comm=log, kernels=kernels), slots)
    for numbers in reductions:
        pieces = []
        for number in numbers:
            piece = Piece(number)
            piece.which, piece.mine, piece.theirs = [0], [number % slots], [number % slots]
            pieces.append(piece)
        tensors = [torch.zeros(1)]
        made.reduce(pieces, tensors, tensors, reduction(torch.float32, ReduceOp.SUM), nullcontext)

    def met_between(first: int, last: int) -> bool:
        """Whether what one rank did first is over when the other does the last."""
        came = {number for what, number in log.done[first:] if what == "comes"}
        return any(what == "has met" and number in came for what, number in log.done[:last])

    for now, (what, slot) in enumerate(log.done):
        for before in range(now):
            earlier = log.done[before]
            if (what, earlier) in (("writes", ("reads", slot)), ("reads", ("writes", slot))):
                assert met_between(before, now), (log.done, before, now)


def costs(choice: _Choice, near: float, far: float, times: int) -> list[int]:
    """The segments gone through, where a byte takes so long."""
    chosen = []
    for _ in range(times):
        chosen.append(choice.now)
        choice.saw(near if choice.now == _NEAR else far)
    return chosen


def test_the_faster_segment_is_chosen_and_the_other_tried_now_and_then() -> None:
    choice = _Choice()
    first = costs(choice, 1.0, 2.0, 500)
    assert first[: _SOONEST + _TRIAL] == [_NEAR] * _SOONEST + [_FAR] * _TRIAL
    assert first[2 * _LATEST :].count(_FAR) <= _TRIAL * (500 // _LATEST)
    moved = costs(choice, 4.0, 2.0, 50)
    assert moved[-1] == _FAR
    assert moved.count(_NEAR) <= 2 * _SOONEST
    assert costs(choice, 1.0, 2.0, 2 * _LATEST)[-1] == _NEAR


def test_a_single_slow_reduction_changes_nothing() -> None:
    choice = _Choice()
    costs(choice, 1.0, 2.0, _SOONEST + _TRIAL + 1)
    choice.saw(50.0)
    assert costs(choice, 1.0, 2.0, _SOONEST) == [_NEAR] * _SOONEST
