"""Where small tensors lie in shared memory, and through how much of it they are reduced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from shanty.torch.hvd.pair import _FAR, _LATEST, _NEAR, _SOONEST, _TRIAL, Pieces, _Choice

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


def costs(choice: _Choice, near: float, far: float, times: int) -> list[int]:
    """The windows gone through, where a byte takes so long."""
    chosen = []
    for _ in range(times):
        chosen.append(choice.now)
        choice.saw(near if choice.now == _NEAR else far)
    return chosen


def test_the_faster_window_is_chosen_and_the_other_tried_now_and_then() -> None:
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
