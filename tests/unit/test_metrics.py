"""A metric of the caller's own, over the rows of all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty import _metrics

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=20)


class Data:
    """Rows as a library's matrix has them."""

    def __init__(self, values: list[float], weights: list[float] | None = None) -> None:
        self.values, self.weights = values, weights

    def get_weight(self) -> Any:
        return None if self.weights is None else np.array(self.weights)


def share(metric: Any, data: Data) -> _metrics.Share:
    if not data.values:
        return _metrics.NOTHING
    return _metrics.share(metric, None, data, len(data.values))


def average(_: object, data: Data) -> tuple[str, float]:
    return "mean", float(np.mean(data.values))


def weighted(_: object, data: Data) -> tuple[str, float]:
    return "mean", float(np.average(data.values, weights=data.get_weight()))


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_a_mean_over_rows_is_that_of_one_process(parts: list[list[float]]) -> None:
    found, failure = _metrics.mean([share(average, Data(values)) for values in parts])
    assert not failure
    every = [value for values in parts for value in values]
    assert found == ([("mean", pytest.approx(np.mean(every), abs=1e-6))] if every else [])


@given(st.lists(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.1, 9)), min_size=1), min_size=1))
def test_a_metric_that_asks_for_weights_counts_by_them(parts: list[Any]) -> None:
    shares = [share(weighted, Data(*map(list, zip(*pairs, strict=True)))) for pairs in parts]
    values, weights = zip(*(pair for pairs in parts for pair in pairs), strict=True)
    expected = np.average(values, weights=weights)
    assert _metrics.mean(shares)[0] == [("mean", pytest.approx(expected, abs=1e-9))]


def test_it_is_asked_for_weights_that_are_not_there() -> None:
    data = Data([1.0, 2.0, 6.0])
    found = _metrics.share(
        lambda _, data: ("none", float(data.get_weight() is None)), None, data, 3
    )
    assert found == _metrics.Share([("none", 1.0)], 3.0)
    assert "get_weight" not in vars(data)


def test_what_is_not_a_number_is_seen() -> None:
    shares = [_metrics.Share([("a", math.nan)], 1.0), _metrics.Share([("a", 1.0)], 9.0)]
    assert math.isnan(_metrics.mean(shares)[0][0][1])
    shares[0] = _metrics.NOTHING
    assert _metrics.mean(shares) == ([("a", 1.0)], "")


def test_several_metrics_with_more_behind_them() -> None:
    shares = [
        _metrics.Share([("a", 1.0, True), ("b", 2.0, False)], 1.0),
        _metrics.Share([("a", 5.0, True), ("b", 6.0, False)], 3.0),
    ]
    assert _metrics.mean(shares) == ([("a", 4.0, True), ("b", 5.0, False)], "")


def test_names_that_differ_and_exceptions() -> None:
    shares = [_metrics.NOTHING, _metrics.Share([("a", 1)], 1), _metrics.Share([("b", 1)], 1)]
    assert "a on rank 1, b on rank 2" in _metrics.mean(shares)[1]
    shares[0] = _metrics.failed(0, ZeroDivisionError("mine"))
    assert _metrics.mean(shares) == ([], "rank 0: the metric raised ZeroDivisionError: mine")
