"""Reads what scripts have logged, once, and keeps a thinned copy of each series in memory.

`metrics.jsonl` only grows, so a look reads what is new. Of a series some thousand points stay, of
a run about `_OF_RUN`: of neighbours the least and the greatest, so that peaks are to be seen.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from shanty.client.measurements import NewObjects
from shanty.client.plain import text
from shanty.dashboard.models import MetricSeries

Point = tuple[float, float, float | None]  # step, time, value
_STEPS = ("step", "global_step", "iteration", "iter", "batch", "epoch")
_NOT_METRICS = {"time", "rank", *_STEPS[:3]}
_MOST, _LEAST = 4000, 50  # points of a series that stay, by how many series there are
_OF_RUN = 200_000
_MOST_SERIES = 4000  # names times ranks
_RUNS = 12  # whose metrics are kept


class RunMetrics:
    """The metrics of one run, as far as its file has been read."""

    def __init__(self, path: Path) -> None:
        self._file = NewObjects(path)
        self._counts: dict[int, int] = {}
        self._series: dict[tuple[str, int], array[float]] = {}  # step, time, value, step, …
        self.last: dict[str, float] = {}
        self.least: dict[str, float] = {}
        self.greatest: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self) -> None:
        """Read what is new."""
        with self._lock:
            for record in self._file.read():
                self._add(record)

    def _add(self, record: dict[str, object]) -> None:
        rank = record.get("rank")
        rank = rank if isinstance(rank, int) else 0
        count = self._counts[rank] = self._counts.get(rank, -1) + 1
        step = next((s for key in _STEPS if (s := _number(record.get(key))) is not None), None)
        when = _number(record.get("time")) or 0.0
        for key, given in record.items():
            name, value = text(key), _number(given)
            if name in _NOT_METRICS or (value is None and given not in _ODD):
                continue
            points = self._series.get((name, rank))
            if points is None:
                if len(self._series) >= _MOST_SERIES:
                    continue
                points = self._series[name, rank] = array("d")
            points.append(float(count) if step is None else step)
            points.append(when)
            points.append(math.nan if value is None else value)
            most = max(_LEAST, min(_MOST, _OF_RUN // len(self._series)))
            if len(points) >= 3 * 2 * most:
                kept = thinned(_points(points), most)
                numbers = (math.nan if v is None else v for point in kept for v in point)
                points[:] = array("d", numbers)
            if value is not None:
                self.last[name] = value
                self.least[name] = min(value, self.least.get(name, value))
                self.greatest[name] = max(value, self.greatest.get(name, value))

    def names(self) -> list[str]:
        """Return the names of the metrics, in the order of their first value."""
        with self._lock:
            return list(dict.fromkeys(name for name, _ in self._series))

    def thinned(self, names: Sequence[str], points: int) -> list[MetricSeries]:
        """Return the series of these names, of all for none, with so many points at most."""
        with self._lock:
            return [
                MetricSeries(name=name, rank=rank, points=thinned(_points(found), points))
                for (name, rank), found in self._series.items()
                if not names or name in names
            ]


def _points(values: array[float]) -> list[Point]:
    numbers = (None if math.isnan(value) else value for value in values[2::3])
    return list(zip(values[0::3], values[1::3], numbers, strict=True))


_ODD = ("NaN", "Infinity", "-Infinity")  # numbers that JSON does not have


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points: of each stretch the least and the greatest, in their order."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, most // 2)
    kept: list[Point] = []
    for number in range(stretches):
        start = number * len(points) // stretches
        part = points[start : (number + 1) * len(points) // stretches]
        known = [(point[2], at) for at, point in enumerate(part) if point[2] is not None]
        if not known:
            kept += part[:1]
            continue
        places = sorted({min(known)[1], max(known)[1]})
        kept += [part[at] for at in places]
    return kept


class MetricsCache:
    """The metrics of the runs that somebody has looked at lately."""

    def __init__(self) -> None:
        self._of = lru_cache(_RUNS)(RunMetrics)

    def of(self, path: Path) -> RunMetrics:
        """Return the metrics in that file, as they are now."""
        found = self._of(path)
        found.read()
        return found
