"""How long each test took in an earlier run, and the order of the tests that follows from it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

ESTIMATES = {"unit": 0.1, "mpi": 4.0}  # by folder, in seconds
OTHERS = 10.0  # labs and containers


def recorded(root: Path) -> dict[str, float]:
    """The durations of the last whole run: of this checkout, else of this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for path in (root / ".ci/junit.xml", cache / "shanty-dev/junit.xml"):
        found = read(path)
        if found:
            return found
    return {}


def read(path: Path) -> dict[str, float]:
    """Seconds by test, from a file of JUnit; {} where it is missing or damaged."""
    try:
        cases = ElementTree.parse(path).iter("testcase")
        return {
            f"{case.attrib['classname']}.{_without_group(case.attrib['name'])}": float(
                case.attrib["time"]
            )
            for case in cases
        }
    except (OSError, ElementTree.ParseError, KeyError, ValueError):
        return {}


def key(nodeid: str) -> str:
    """What `read` calls a test."""
    place, bracket, parameters = _without_group(nodeid).partition("[")
    place = place.replace(".py::", ".").replace("::", ".").replace("/", ".")
    return place + bracket + parameters


def by_duration(items: list[pytest.Item], known: Mapping[str, float]) -> None:
    """Sort the tests so that the longest units come first: the short ones then fill the gaps.

    A unit is what one worker of pytest-xdist runs: a group, or a test without one.
    """
    guesses = _guesses(items, known)
    units: dict[str, list[pytest.Item]] = {}
    totals: dict[str, float] = {}
    for item in items:
        groups = [str(mark.args[0]) for mark in item.iter_markers("xdist_group")]
        unit = "_".join(sorted(groups)) or item.nodeid
        units.setdefault(unit, []).append(item)
        seconds = known.get(key(item.nodeid), guesses[item.path])
        totals[unit] = totals.get(unit, 0.0) + seconds
    order = sorted(units, key=lambda unit: (-totals[unit], unit))
    items[:] = [item for unit in order for item in units[unit]]


def _guesses(items: Iterable[pytest.Item], known: Mapping[str, float]) -> dict[Path, float]:
    """What a test takes that has not run yet: as long as others of its file."""
    found: dict[Path, list[float]] = {}
    for item in items:
        seconds = known.get(key(item.nodeid))
        found.setdefault(item.path, []).extend([] if seconds is None else [seconds])
    return {
        path: statistics.median(times) if times else _estimate(path)
        for path, times in found.items()
    }


def _estimate(path: Path) -> float:
    return next((ESTIMATES[part] for part in path.parts if part in ESTIMATES), OTHERS)


def _without_group(name: str) -> str:
    """The name as it was before pytest-xdist put the group behind it."""
    end = name.rfind("@")
    return name[:end] if end > name.rfind("]") else name
