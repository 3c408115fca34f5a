"""Reads how busy the hosts of a run were, as few points as are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shanty.runtime.rundir import RunDir, read_lines


@dataclass
class GpuSeries:
    """One GPU: utilization (0 … 1) and memory in use (bytes); None where it was not known."""

    index: int
    name: str
    memory_total: int | None
    utilization: list[float | None] = field(default_factory=list)
    memory: list[float | None] = field(default_factory=list)


@dataclass
class Series:
    """One host; all lists, those of its GPUs too, have a value for each of the times.

    time: seconds since 1970. cpu: 0 … 1 of its cores. memory: bytes in use, of memory_total.
    receive, send: bytes a second, over all links but the loopback.
    """

    memory_total: int
    time: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    send: list[float] = field(default_factory=list)
    gpus: list[GpuSeries] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


def read(run: RunDir, points: int = 500) -> dict[str, Series]:
    """Read the run's `resources.jsonl`: for each host at most so many points, each a mean.

    The hosts are in the order of their first sample; a run without samples has none. Damaged
    lines are passed over.
    """
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for line in read_lines(run.resources):
        if _is_sample(line):
            hosts.setdefault(line["host"], []).append(line)
    return {host: _series(samples, points) for host, samples in hosts.items()}


def _is_sample(line: Mapping[str, Any]) -> bool:
    names = ("time", "cpu", "memory", "memory_total", "receive", "send")
    numbers = all(isinstance(line.get(name), (int, float)) for name in names)
    gpus = line.get("gpus", [])
    known = isinstance(gpus, list) and all(
        isinstance(gpu, dict) and isinstance(gpu.get("index"), int) for gpu in gpus
    )
    return numbers and known and isinstance(line.get("host"), str)


def _series(samples: Sequence[Mapping[str, Any]], points: int) -> Series:
    samples = sorted(samples, key=lambda each: each["time"])
    found = Series(samples[-1]["memory_total"])
    for gpu in [gpu for each in samples for gpu in each.get("gpus", [])]:
        if all(gpu["index"] != known.index for known in found.gpus):
            name = str(gpu.get("name", ""))
            found.gpus.append(GpuSeries(gpu["index"], name, gpu.get("memory_total")))
    found.gpus.sort(key=lambda each: each.index)
    for bucket in thinned(samples, points):
        for name in ("time", "cpu", "memory", "receive", "send"):
            getattr(found, name).append(_mean(each[name] for each in bucket))
        for series in found.gpus:
            gpus = [
                g for each in bucket for g in each.get("gpus", []) if g["index"] == series.index
            ]
            series.utilization.append(_mean(gpu.get("utilization") for gpu in gpus))
            series.memory.append(_mean(gpu.get("memory") for gpu in gpus))
    return found


def thinned(samples: Sequence[Mapping[str, Any]], points: int) -> list[Sequence[Mapping[str, Any]]]:
    """Put samples, which are sorted by time, into at most so many spans of equal length.

    None of those returned is empty. Few enough samples stay as they are.
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


def _mean(values: Iterable[float | None]) -> Any:
    known = [value for value in values if isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None
