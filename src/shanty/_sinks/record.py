"""What a place of `shanty.log` gets: the values of one call, and whose they are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_STEPS = ("step", "epoch")


class Place(NamedTuple):
    """Whose values they are. folder: for this place's files. run: "" without a run."""

    folder: Path
    run: str
    name: str
    rank: int

    @property
    def title(self) -> str:
        """The name of this rank's record."""
        return self.name if self.rank == 0 else f"{self.name} rank {self.rank}"


class Record(NamedTuple):
    """The values of one call of `shanty.log`. time: seconds since 1970."""

    step: int
    time: float
    numbers: Mapping[str, float]
    texts: Mapping[str, str]


class Sink(Protocol):
    """One place, in a module of its own as the class `Sink`, made of the `Place`."""

    def __init__(self, place: Place) -> None:
        """Begin the record."""

    def write(self, record: Record) -> None:
        """Add to it."""

    def close(self, *, failed: bool) -> None:
        """Write the remaining values, and how the script ended."""


def record(values: Mapping[str, Any], count: int) -> Record:
    """Sort the values of one call. The step is that of `step`, else of `epoch`, else `count`."""
    step, of_step = count, ""
    for name in _STEPS:
        value = values.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value % 1 == 0:
            step, of_step = int(value), name
            break
    others = {name: value for name, value in values.items() if name != of_step}
    numbers = {n: float(v) for n, v in others.items() if isinstance(v, (bool, int, float))}
    texts = {name: value for name, value in others.items() if isinstance(value, str)}
    return Record(step, time.time(), numbers, texts)
