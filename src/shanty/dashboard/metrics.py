"""Reads what scripts have logged, once, and keeps a thinned copy of each series in memory.

`metrics.jsonl` only grows, so a look reads what is new. Of a series at most `_KEPT` points stay:
of neighbours the least and the greatest, so that peaks are still to be seen.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from shanty.dashboard.models import Series
from shanty.dashboard.plain import text

Point = tuple[float, float, float | None]  # step, time, value
_STEPS = ("step", "global_step", "iteration", "iter", "batch", "epoch")
_NOT_METRICS = {"time", "rank", *_STEPS[:3]}
_KEPT = 4000  # points of a series
_MOST_SERIES = 2000  # names times ranks
_RUNS = 24  # whose metrics are kept
_CHUNK = 4 << 20


class RunMetrics:
    """The metrics of one run, as far as its file has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._counts: dict[int, int] = {}
        self.series: dict[tuple[str, int], list[Point]] = {}
        self.last: dict[str, float] = {}
        self.least: dict[str, float] = {}
        self.greatest: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self) -> None:
        """Read what is new."""
        with self._lock:
            try:
                file = self._path.open("rb")
            except OSError:
                return
            with file:
                if self._offset > file.seek(0, 2):  # another file: the run was deleted, made anew
                    self._forget()
                file.seek(self._offset)
                while True:
                    data = file.read(_CHUNK)
                    end = data.rfind(b"\n") + 1
                    if not end:
                        return
                    self._take(data[:end])
                    self._offset += end
                    file.seek(self._offset)

    def _forget(self) -> None:
        self._offset = 0
        for each in (self._counts, self.series, self.last, self.least, self.greatest):
            each.clear()

    def _take(self, data: bytes) -> None:
        for line in data.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
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
            points = self.series.get((name, rank))
            if points is None:
                if len(self.series) >= _MOST_SERIES:
                    continue
                points = self.series[name, rank] = []
            points.append((float(count) if step is None else step, when, value))
            if len(points) >= 2 * _KEPT:
                points[:] = thinned(points, _KEPT)
            if value is not None:
                self.last[name] = value
                self.least[name] = min(value, self.least.get(name, value))
                self.greatest[name] = max(value, self.greatest.get(name, value))

    def names(self) -> list[str]:
        """Return the names of the metrics, in the order of their first value."""
        with self._lock:
            return list(dict.fromkeys(name for name, _ in self.series))

    def thinned(self, names: Sequence[str], points: int) -> list[Series]:
        """Return the series of these names, of all for none, with so many points at most."""
        with self._lock:
            return [
                Series(name=name, rank=rank, points=thinned(found, points))
                for (name, rank), found in self.series.items()
                if not names or name in names
            ]


_ODD = ("NaN", "Infinity", "-Infinity")  # what is no number of JSON's


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
        self._runs: OrderedDict[Path, RunMetrics] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, path: Path) -> RunMetrics:
        """Return the metrics in that file, as they are now."""
        with self._lock:
            found = self._runs.pop(path, None) or RunMetrics(path)
            self._runs[path] = found
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        found.read()
        return found
