"""Reads what a run's hosts had in use, thinned to so many points.

`resources.jsonl` has a line a sample: `{"time", "host", "cpu", "memory", "memory_total", "receive",
"send", "gpus": [{"index", "name", "utilization", "memory", "memory_total"}]}`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shanty.dashboard.models import Gpu, HostResources
from shanty.dashboard.plain import text

_PIECES, _PIECE = 1024, 8 << 10  # of a large file so many pieces of so many bytes are read
_MOST_HOSTS, _MOST_GPUS = 4096, 64


def resources(path: Path, points: int) -> dict[str, HostResources]:
    """Return the samples of each host, every n-th where there are too many."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for sample in _samples(path):
        host = sample.get("host")
        if isinstance(host, str) and _number(sample.get("time")) is not None:
            if text(host) not in samples and len(samples) >= _MOST_HOSTS:
                continue
            samples.setdefault(text(host), []).append(sample)
    return {host: _of_host(_spread(found, points)) for host, found in samples.items()}


def _samples(path: Path) -> list[dict[str, Any]]:
    """Return all samples of the file; of a large one those of pieces spread over it."""
    found = []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= _PIECES * _PIECE:
                file.seek(0)
                lines = file.read().splitlines()
            else:
                lines = []
                for number in range(_PIECES):
                    file.seek((size - _PIECE) * number // (_PIECES - 1))
                    lines += file.read(_PIECE).split(b"\n")[1:-1]
    except OSError:
        return []
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _spread(samples: Sequence[dict[str, Any]], points: int) -> list[dict[str, Any]]:
    """Return so many samples at most, the last one always among them."""
    if len(samples) <= points:
        return list(samples)
    return [samples[(number + 1) * len(samples) // points - 1] for number in range(points)]


def _of_host(samples: list[dict[str, Any]]) -> HostResources:
    def column(name: str) -> list[float | None]:
        return [_number(each.get(name)) for each in samples]

    return HostResources(
        time=[float(each["time"]) for each in samples],
        cpu=column("cpu"),
        memory=column("memory"),
        memory_total=_last(column("memory_total")),
        receive=column("receive"),
        send=column("send"),
        gpus=_gpus(samples),
    )


def _gpus(samples: list[dict[str, Any]]) -> list[Gpu]:
    by_sample: list[dict[int, dict[str, Any]]] = []
    for sample in samples:
        given = sample.get("gpus")
        listed = given if isinstance(given, list) else []
        by_sample.append(
            {
                each["index"]: each
                for each in listed[:_MOST_GPUS]
                if isinstance(each, dict) and isinstance(each.get("index"), int)
            }
        )
    found = []
    for index in sorted({index for gpus in by_sample for index in gpus}):
        own = [gpus.get(index, {}) for gpus in by_sample]
        names = [text(gpu["name"]) for gpu in own if gpu.get("name")]
        found.append(
            Gpu(
                index=index,
                name=names[-1] if names else "",
                utilization=[_number(gpu.get("utilization")) for gpu in own],
                memory=[_number(gpu.get("memory")) for gpu in own],
                memory_total=_last([_number(gpu.get("memory_total")) for gpu in own]),
            )
        )
    return found


def _last(values: list[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
