"""Averages a metric of the caller's own over the rows of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from shanty.xgboost.communication import Communicator
from shanty.xgboost.consensus import Consensus
from shanty.xgboost.errors import DataError

Metric = Callable[[Any, Any], Any]


class _Share(NamedTuple):
    """What a rank's rows contribute: each value counts `weight` times."""

    names: list[str]
    values: list[float]
    weight: float
    failure: str = ""


def over_ranks(metric: Metric | None, ranks: Communicator) -> Metric | None:
    """The metric, as a mean over the rows of all ranks.

    A rank without rows contributes nothing; the metric is not called there. Where the metric asks
    the matrix for its weights, a rank's value counts by their sum. An exception in the metric is
    raised on its rank, and DataError with the number of that rank on the others.
    """
    if metric is None or ranks.size == 1:
        return metric

    def mean(guess: Any, matrix: Any) -> list[tuple[str, float]]:
        own: Exception | None = None
        share = _Share([], [], 0.0)
        try:
            if matrix.num_row():
                share = _share(metric, guess, matrix)
        except Exception as error:  # noqa: BLE001 (raised below, once the others know)
            own = error
            share = share._replace(
                failure=f"rank {ranks.rank}: the metric raised {type(error).__name__}: {error}"
            )
        consensus = Consensus(ranks, "metric of the caller's own")
        found, failure = consensus.conclude(share, own is not None, _mean)
        if own is not None:
            raise own
        if failure:
            raise DataError(failure)
        return found

    return mean


def _share(metric: Metric, guess: Any, matrix: Any) -> _Share:
    asked: list[str] = []
    with _asked(matrix, asked):
        found = metric(guess, matrix)
    pairs = found if isinstance(found, list) else [found]
    weights = matrix.get_weight() if asked else np.empty(0)
    weight = float(weights.sum(dtype=np.float64)) if weights.size else float(matrix.num_row())
    return _Share([str(name) for name, _ in pairs], [float(value) for _, value in pairs], weight)


@contextmanager
def _asked(matrix: Any, asked: list[str]) -> Iterator[None]:
    """Notes, in `asked`, the calls that ask the matrix for its weights."""

    def noting(name: str, get: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*field: str) -> Any:
            if not field or field[0] == "weight":
                asked.append(name)
            return get(*field)

        return noted

    names = ("get_weight", "get_float_info")
    for name in names:
        setattr(matrix, name, noting(name, getattr(matrix, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(matrix, name)


def _mean(shares: list[_Share]) -> tuple[list[tuple[str, float]], str]:
    """The means by name, and why there are none."""
    failures = [each.failure for each in shares if each.failure]
    if failures:
        return [], failures[0]
    there = [(rank, each) for rank, each in enumerate(shares) if each.names]
    if not there:
        return [], ""
    first, names = there[0][0], there[0][1].names
    for rank, each in there:
        if each.names != names:
            return [], (
                f"the ranks' metrics have different names: {', '.join(names)} on rank {first}, "
                f"{', '.join(each.names)} on rank {rank}"
            )
    whole = math.fsum(each.weight for _, each in there)
    values = [
        math.fsum(each.values[at] * each.weight for _, each in there if each.weight) / whole
        if whole
        else math.nan
        for at in range(len(names))
    ]
    return list(zip(names, values, strict=True)), ""
