"""A metric of the caller's own, over the rows of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

Result = tuple[Any, ...]
"""Name and value of a metric, and whatever the library has behind them."""


class Share(NamedTuple):
    """What the rows of a rank contribute to the mean."""

    results: list[Result]
    weight: float
    failure: str = ""


NOTHING = Share([], 0.0)
"""That of a rank without rows."""


def share(metric: Callable[[Any, Any], Any], guess: Any, data: Any, rows: int) -> Share:
    """Calls the metric for the rows of this rank; raises what it raises.

    data: the library's matrix. The values count by its rows, or by the sum of its weights where
    the metric asks it for them.
    """
    asked: list[str] = []
    with _asked(data, asked):
        found = metric(guess, data)
    results = found if isinstance(found, list) else [found]
    weights = np.asarray(data.get_weight() if asked else [])
    # Without weights NumPy's array holds nothing, or the None that there is instead of one.
    given = weights.ndim > 0 and weights.size > 0
    weight = float(weights.sum(dtype=np.float64)) if given else float(rows)
    return Share([(str(name), float(value), *more) for name, value, *more in results], weight)


def failed(rank: int, error: Exception) -> Share:
    """That of a rank where the metric has raised an exception."""
    return NOTHING._replace(
        failure=f"rank {rank}: the metric raised {type(error).__name__}: {error}"
    )


def mean(shares: Sequence[Share]) -> tuple[list[Result], str]:
    """The means over all ranks; or none, and why."""
    failures = [each.failure for each in shares if each.failure]
    if failures:
        return [], failures[0]
    there = [(rank, each) for rank, each in enumerate(shares) if each.results]
    if not there:
        return [], ""
    first, results = there[0][0], there[0][1].results
    names = [name for name, *_ in results]
    for rank, each in there:
        others = [name for name, *_ in each.results]
        if others != names:
            return [], (
                f"the ranks' metrics have different names: {', '.join(names)} on rank {first}, "
                f"{', '.join(others)} on rank {rank}"
            )
    whole = math.fsum(each.weight for _, each in there)
    found = []
    for at, (name, _, *more) in enumerate(results):
        parts = [each.results[at][1] * each.weight for _, each in there if each.weight]
        found.append((name, sum(parts) / whole if whole else math.nan, *more))
    return found, ""


@contextmanager
def _asked(data: Any, asked: list[str]) -> Iterator[None]:
    """Notes, in `asked`, the calls that ask the matrix for its weights."""

    def noting(name: str, get: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*field: Any, **named: Any) -> Any:
            if (*field, *named.values(), "weight")[0] == "weight":
                asked.append(name)
            return get(*field, **named)

        return noted

    names = [name for name in ("get_weight", "get_float_info", "get_field") if hasattr(data, name)]
    for name in names:
        setattr(data, name, noting(name, getattr(data, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(data, name)
