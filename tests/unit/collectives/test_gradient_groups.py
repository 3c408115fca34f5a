"""How gradients are put together: every one of them once, in the groups that were asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.collectives.gradient_groups import check_factor, check_groups, split
from shanty.collectives.request import Op

KEYS = st.lists(st.integers(0, 99), unique=True, max_size=12)


@given(KEYS, st.integers(1, 15))
def test_a_number_of_groups(keys: list[int], groups: int) -> None:
    found = split(keys, groups)
    assert [place for group in found for place in group] == list(range(len(keys)))
    assert len(found) == min(groups, len(keys))
    sizes = [len(group) for group in found]
    assert sizes == sorted(sizes, reverse=True)
    assert not sizes or sizes[0] - sizes[-1] <= 1


@given(KEYS, st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4))
def test_lists(keys: list[int], groups: list[list[int]]) -> None:
    """Each is in the first list that names it, or a group of its own."""
    found = split(keys, groups)
    assert sorted(place for group in found for place in group) == list(range(len(keys)))
    home = {key: number for number, group in reversed([*enumerate(groups)]) for key in group}
    for group in found:
        homes = {home.get(keys[place], -1) for place in group}
        assert len(homes) == 1
        assert len(group) == 1 or homes != {-1}


def test_all_at_once() -> None:
    assert split("abc", None) == [[0, 1, 2]]
    assert split("", None) == []


@pytest.mark.parametrize("groups", [0, -1, True, 1.5, "two"])
def test_what_cannot_be(groups: Any) -> None:
    with pytest.raises(ValueError, match="must be 1 or more, or lists"):
        check_groups(0, groups)


def test_the_older_name() -> None:
    with pytest.warns(DeprecationWarning, match="groups now"):
        assert check_groups(3, None) == 3
    with pytest.warns(DeprecationWarning, match="groups now"):
        assert check_groups(3, 2) == 2
    assert check_groups(0, [["a"]]) == [["a"]]


def test_a_factor_is_for_averages() -> None:
    check_factor(2.0, Op.AVERAGE)
    check_factor(1.0, Op.SUM)
    with pytest.raises(ValueError, match="op=Average only"):
        check_factor(2.0, Op.SUM)
