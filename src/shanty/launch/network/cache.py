"""Remembers what was measured and chosen: `<home>/net/<fingerprint of the networks>.json`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, TypeVar

from shanty.launch.finding import Finding, Level
from shanty.launch.network.results import Choice, Contact, Measured, Pace, Pair, Verdict
from shanty.launch.network.route import Interface, Rail, Route
from shanty.launch.network.topology import Network
from shanty.runtime.rundir import read_json, write_json

V = TypeVar("V")
_FORM = 1  # of the files; those of another form are not read
_LIFE = 7 * 86400.0  # seconds after which is measured anew, whatever the hosts look like
_LIFE_BROKEN = 600.0  # the same where a network was broken, since somebody may mend it


def load(home: Path, fingerprint: str) -> tuple[Measured, Choice, float] | None:
    """Returns what was measured and chosen, and its age in seconds; None where nothing is fresh."""
    value = read_json(_path(home, fingerprint))
    if value is None or value.pop("sum", "") != _sum(value) or value["form"] != _FORM:
        return None
    age = time.time() - value["time"]
    measured = measured_from_json(value["measured"])
    contacts = [one for each in measured.contacts.values() for one in each.values()]
    life = _LIFE if all(one.ok for one in contacts) else _LIFE_BROKEN
    return (measured, _choice(value["choice"]), max(0.0, age)) if -60 < age < life else None


def save(home: Path, fingerprint: str, measured: Measured, choice: Choice) -> None:
    """Keeps it, and removes what is too old; a home that cannot be written costs time, no run."""
    folder = _path(home, fingerprint).parent
    value = {
        "form": _FORM,
        "time": time.time(),
        "measured": measured_to_json(measured),
        "choice": _choice_to_json(choice),
    }
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{fingerprint}.json", {**value, "sum": _sum(value)})
        for path in folder.glob("*.json"):
            if time.time() - path.stat().st_mtime > _LIFE:
                path.unlink()


def _sum(value: Mapping[str, Any]) -> str:
    """Returns a checksum: a file that was changed is not used."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def measured_to_json(measured: Measured) -> dict[str, Any]:
    """Returns all that was measured as plain JSON."""

    def rows(values: Mapping[str, Mapping[Pair, Any]]) -> dict[str, list[Any]]:
        return {
            name: [[*pair, *astuple(one)] for pair, one in each.items()]
            for name, each in values.items()
        }

    return {
        "hosts": measured.hosts,
        "whole": measured.whole,
        "networks": [
            {
                **asdict(network),
                "ends": _ends_to_json(network.ends),
                "down": sorted(network.down),
                "doubled": sorted(network.doubled),
            }
            for network in measured.networks
        ],
        "contacts": rows(measured.contacts),
        "paces": rows(measured.paces),
        "together": [
            {"networks": names, "rates": [[*pair, *rates] for pair, rates in each.items()]}
            for names, each in measured.together.items()
        ],
    }


def measured_from_json(value: Mapping[str, Any]) -> Measured:
    """Returns what `measured_to_json` was given."""

    def pairs(rows: Iterable[list[Any]], make: Callable[..., V]) -> dict[Pair, V]:
        return {(row[0], row[1]): make(*row[2:]) for row in rows}

    return Measured(
        tuple(value["hosts"]),
        tuple(_network(entry) for entry in value["networks"]),
        {name: pairs(rows, Contact) for name, rows in value["contacts"].items()},
        {name: pairs(rows, Pace) for name, rows in value["paces"].items()},
        {
            tuple(entry["networks"]): pairs(entry["rates"], lambda *rates: rates)
            for entry in value["together"]
        },
        value["whole"],
    )


def _choice_to_json(choice: Choice) -> dict[str, Any]:
    return {
        "route": [_ends_to_json(rail.interfaces) for rail in choice.route.rails],
        "reason": choice.reason,
        "verdicts": {name: asdict(verdict) for name, verdict in choice.verdicts.items()},
        "findings": [finding.to_json() for finding in choice.findings],
    }


def _choice(value: Mapping[str, Any]) -> Choice:
    return Choice(
        Route(tuple(Rail(_ends(ends)) for ends in value["route"])),
        {name: Verdict(**verdict) for name, verdict in value["verdicts"].items()},
        tuple(Finding(**{**each, "level": Level(each["level"])}) for each in value["findings"]),
        value["reason"],
    )


def _network(value: Mapping[str, Any]) -> Network:
    sets = {key: frozenset(value[key]) for key in ("down", "doubled")}
    return Network(**{**value, **sets, "ends": _ends(value["ends"])})


def _ends_to_json(ends: Mapping[str, Interface]) -> dict[str, Any]:
    return {host: astuple(end) for host, end in ends.items()}


def _ends(value: Mapping[str, Iterable[Any]]) -> dict[str, Interface]:
    return {host: Interface(*end) for host, end in value.items()}


def _path(home: Path, fingerprint: str) -> Path:
    return home / "net" / f"{fingerprint}.json"
