"""What was measured in a run: what its script logged, and how busy its hosts were.

`metrics.jsonl` and `resources.jsonl` are read on from where they were left, so that a live run can
be watched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RunDir, json_objects

Values = Iterator[tuple[str, float]]  # of a sample: whose, and how much
_AT_ONCE = 4 << 20  # bytes of a file that are held at once
_OWN_KEYS = ("time", "rank")  # of a line of metrics.jsonl
_NOT_SAMPLED = {"gpuPowerDraw", "gpuTemp"}


def _of_host(key: str, factor: float = 1.0) -> Callable[[Mapping[str, Any]], Values]:
    def read(sample: Mapping[str, Any]) -> Values:
        if isinstance(sample.get(key), (int, float)):
            yield str(sample.get("host", "")), sample[key] * factor

    return read


def _of_gpus(value: Callable[[Mapping[str, Any]], float]) -> Callable[[Mapping[str, Any]], Values]:
    def read(sample: Mapping[str, Any]) -> Values:
        for gpu in sample.get("gpus") or ():
            try:
                yield f"{sample.get('host', '')} gpu{gpu['index']}", float(value(gpu))
            except (KeyError, TypeError, ZeroDivisionError):
                continue  # its driver does not say

    return read


# The platform's names, and what they are of a line of resources.jsonl.
OF_HOSTS: Mapping[str, Callable[[Mapping[str, Any]], Values]] = {
    "cpuPercentage": _of_host("cpu", 100.0),
    "memoryUsage": _of_host("memory"),
    "gpuMemoryFree": _of_gpus(lambda gpu: gpu["memory_total"] - gpu["memory"]),
    "gpuMemoryUsed": _of_gpus(lambda gpu: gpu["memory"]),
    "gpuUtilization": _of_gpus(lambda gpu: 100.0 * gpu["utilization"]),
    "gpuMemoryUtilization": _of_gpus(lambda gpu: 100.0 * gpu["memory"] / gpu["memory_total"]),
}
USUAL = ("cpuPercentage", "memoryUsage")


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for a metric of the platform's that nobody measures here."""
    for name in names:
        if name in _NOT_SAMPLED:
            raise UsageError(
                f"{name} is not measured", fix="of GPUs there are gpuUtilization and gpuMemory…"
            )


@dataclass(frozen=True, slots=True)
class Row:
    """The means of an interval: since when (seconds since 1970), whose, and each metric's."""

    time: float
    whose: str
    values: Mapping[str, float]


class NewObjects:
    """Reads the objects of the whole lines that a growing file got since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield them; none where the file is not there yet."""
        rest = b""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            while piece := file.read(_AT_ONCE):
                *lines, rest = (rest + piece).split(b"\n")
                yield from json_objects(lines)
            self._offset = file.tell() - len(rest)


class Reader:
    """Reads the metrics `names` of a run, in intervals of so many seconds."""

    def __init__(self, run: RunDir, names: Sequence[str], interval: float) -> None:
        self.run = run
        self.names = names
        self._of_hosts = [name for name in names if name in OF_HOSTS]
        self._logged = [name for name in names if name not in (*OF_HOSTS, *_OWN_KEYS)]
        self._interval = interval
        self._resources = NewObjects(run.resources)
        self._metrics = NewObjects(run.metrics)
        self._sums: dict[tuple[float, str], dict[str, tuple[float, int]]] = {}

    def read(self, *, whole: bool, start: float = 0.0, end: float = math.inf) -> list[Row]:
        """Return the rows that are new; not the last interval's, which may go on, unless `whole`.

        Only what was measured from `start` to `end` counts.
        """
        for sample in self._resources.read() if self._of_hosts else ():
            for name in self._of_hosts:
                for whose, value in OF_HOSTS[name](sample):
                    self._add(sample, whose, name, value, start, end)
        for line in self._metrics.read() if self._logged else ():
            for name in self._logged:
                if isinstance(line.get(name), (int, float)):
                    self._add(line, f"rank {line.get('rank', 0)}", name, line[name], start, end)
        keys = sorted(self._sums)
        last = keys[-1][0] if keys and not whole else math.inf
        done = [key for key in keys if key[0] < last]
        return [
            Row(*key, {name: total / count for name, (total, count) in self._sums.pop(key).items()})
            for key in done
        ]

    def _add(
        self,
        line: Mapping[str, Any],
        whose: str,
        name: str,
        value: float,
        start: float,
        end: float,
    ) -> None:
        when = line.get("time")
        if not isinstance(when, (int, float)) or not start <= when <= end:
            return
        sums = self._sums.setdefault((when // self._interval * self._interval, whose), {})
        total, count = sums.get(name, (0.0, 0))
        sums[name] = (total + value, count + 1)
