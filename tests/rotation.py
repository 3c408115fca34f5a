"""What the short form of the suite leaves out, in turn: another part each day, so that each variant
of each test runs within a few weeks.

SHANTY_TEST_DAY names the day (days since 1970), to repeat the selection of another day.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest

from runs import FLAVOURS, LONG


def today() -> int:
    """The day whose turn it is."""
    return int(os.environ.get("SHANTY_TEST_DAY") or time.time() // 86400)


def is_due(place: int, share: int, day: int) -> bool:
    """True on one of `share` days in a row."""
    return (place + day) % share == 0


def due(names: Sequence[str], share: int) -> Sequence[str]:
    """Those of these names that have their turn today, one in `share`; all of them if LONG."""
    return names if LONG else names[today() % share :: share]


def variant(name: str, there: Sequence[str], share: int, day: int) -> str:
    """The variant of a test that has its turn.

    It changes once in `share` days: if it changed daily, a test that is due every third day would
    meet the same one of three variants each time.
    """
    return there[(crc32(name.encode()) + day // share) % len(there)]


def thin(items: list[pytest.Item], folder: Path, every: int = 1, parameters: int = 1) -> None:
    """Keep each test of a folder on one MPI, or one container engine. Of the tests of a file, one
    in `every` is kept, of those marked as `sampled(share)` one in `share`. Of the other parameters
    of one function, one in `parameters` is kept, and at least one. All are kept if LONG.

    Other parameters than the MPI make another test. Tests that share launches share the MPI, and
    save nothing if some of them are left out.
    """
    if LONG:
        return
    day = today()
    here = [item for item in items if item.path.parent == folder]
    variants: dict[tuple[Path, str], set[str]] = {}
    functions: dict[tuple[Path, str], dict[str, int]] = {}  # the places of their parameters
    for item in here:
        variants.setdefault((item.path, _name(item)), set()).add(_variant(item))
        _enter(functions.setdefault((item.path, _function(item)), {}), _name(item))
    files: dict[tuple[Path, int], dict[str, int]] = {}  # the places of the names that have a share
    shares: dict[pytest.Item, int] = {}
    for item in here:
        shares[item] = _share(item, every)
        if shares[item] > 1:
            _enter(files.setdefault((item.path, shares[item]), {}), _name(item))
    left_out = set()
    for item in here:
        name, share = _name(item), shares[item]
        there = sorted(variants[item.path, name])
        seed = item.path.stem if _shares_launches(item) else f"{item.path.stem} {name}"
        if share > 1:  # files begin on different days, or the first tests of all would meet
            place = files[item.path, share][name] + crc32(item.path.stem.encode())
        elif _shares_launches(item) or item.get_closest_marker("sampled"):
            place = 0
        else:
            place = functions[item.path, _function(item)][name]
            share = min(parameters, len(functions[item.path, _function(item)]))
        due = is_due(place, share, day)
        if not due or _variant(item) != variant(seed, there, share, day):
            left_out.add(item)
    if left_out:
        items[0].config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _enter(places: dict[str, int], name: str) -> None:
    places.setdefault(name, len(places))


def _function(item: pytest.Item) -> str:
    """The name of a test without its parameters."""
    return item.name.partition("[")[0]


def _share(item: pytest.Item, every: int) -> int:
    mark = item.get_closest_marker("sampled")
    if mark is None:
        return every
    share: int = mark.args[0] if mark.args else 3
    return share


def _name(item: pytest.Item) -> str:
    """The name of a test with its parameters, those left out that make the variant."""
    return item.name.replace(_variant(item), "") if _variant(item) else item.name


def _shares_launches(item: pytest.Item) -> bool:
    return "launches" in getattr(item, "fixturenames", ())


def _variant(item: pytest.Item) -> str:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    flavour = parameters.get("flavour") or parameters.get("mpi") or ""
    engine = parameters.get("engine", "")
    return "-".join(filter(None, [engine, flavour if flavour in FLAVOURS else ""]))
