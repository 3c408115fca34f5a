"""Reads how busy the hosts of a run were, as a limited number of points."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shanty.runtime.rundir import RunDir, json_objects

_PIECES, _PIECE = 1024, 8 << 10  # of a large file so many pieces of so many bytes are read
_MOST_HOSTS = 4096


@dataclass
class GpuSeries:
    """One GPU: utilization (0 … 1) and memory in use (bytes); None where it was not known."""

    index: int
    name: str = ""
    memory_total: float | None = None
    utilization: list[float | None] = field(default_factory=list)
    memory: list[float | None] = field(default_factory=list)


@dataclass
class Series:
    """One host; all lists, those of its GPUs too, have a value for each of the times.

    time: seconds since 1970. cpu: 0 … 1 of its cores. memory: bytes in use, of memory_total.
    receive, send: bytes a second, over all links but the loopback.
    """

    memory_total: float | None = None
    time: list[float] = field(default_factory=list)
    cpu: list[float | None] = field(default_factory=list)
    memory: list[float | None] = field(default_factory=list)
    receive: list[float | None] = field(default_factory=list)
    send: list[float | None] = field(default_factory=list)
    gpus: list[GpuSeries] = field(default_factory=list)


def read(run: RunDir, points: int = 500) -> dict[str, Series]:
    """Read the run's `resources.jsonl`: for each host at most so many points, each a mean.

    The hosts are in the order of their first sample; a run without samples has none. Lines that
    are not samples are skipped; a value that is not a number is None.
    """
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for line in _lines(run.resources):
        if _is_sample(line) and (line["host"] in hosts or len(hosts) < _MOST_HOSTS):
            hosts.setdefault(line["host"], []).append(line)
    return {host: _series(samples, points) for host, samples in hosts.items()}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all lines of the file; of a large file, only pieces that are spread over it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= _PIECES * _PIECE:
                file.seek(0)
                texts = file.read().splitlines()
            else:
                texts = []
                for number in range(_PIECES):
                    file.seek((size - _PIECE) * number // (_PIECES - 1))
                    texts += file.read(_PIECE).split(b"\n")[1:-1]
    except OSError:
        return
    yield from json_objects(texts)


def _is_sample(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("host"), str) and _is_number(line.get("time"))


def _is_number(value: object) -> bool:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and math.isfinite(value)  # type: ignore[arg-type]


def _gpus(sample: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = sample.get("gpus")
    listed = given if isinstance(given, list) else []
    return [
        each for each in listed if isinstance(each, dict) and isinstance(each.get("index"), int)
    ]


def _series(samples: Sequence[Mapping[str, Any]], points: int) -> Series:
    samples = sorted(samples, key=lambda each: each["time"])
    totals = [each["memory_total"] for each in samples if _is_number(each.get("memory_total"))]
    found = Series(totals[-1] if totals else None)
    gpus: dict[int, GpuSeries] = {}
    for gpu in (gpu for each in samples for gpu in _gpus(each)):
        series = gpus.setdefault(gpu["index"], GpuSeries(gpu["index"]))
        series.name = str(gpu.get("name") or series.name)
        total = gpu.get("memory_total")
        series.memory_total = total if _is_number(total) else series.memory_total
    found.gpus = [gpus[index] for index in sorted(gpus)]
    for bucket in thinned(samples, points):
        found.time.append(sum(each["time"] for each in bucket) / len(bucket))
        for name in ("cpu", "memory", "receive", "send"):
            getattr(found, name).append(_mean(each.get(name) for each in bucket))
        for series in found.gpus:
            own = [g for each in bucket for g in _gpus(each) if g["index"] == series.index]
            series.utilization.append(_mean(gpu.get("utilization") for gpu in own))
            series.memory.append(_mean(gpu.get("memory") for gpu in own))
    return found


def thinned(samples: Sequence[Mapping[str, Any]], points: int) -> list[Sequence[Mapping[str, Any]]]:
    """Put samples, which are sorted by time, into at most so many spans of equal length.

    Empty spans are left out. Few enough samples stay as they are.
    """
    if len(samples) <= points:
        return [[each] for each in samples]
    first, last = samples[0]["time"], samples[-1]["time"]
    width = (last - first) / max(1, points)
    found: dict[int, list[Mapping[str, Any]]] = {}
    for each in samples:
        place = int((each["time"] - first) / width) if width > 0 else 0
        found.setdefault(min(place, max(1, points) - 1), []).append(each)
    return list(found.values())


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if _is_number(value)]
    return sum(known) / len(known) if known else None
