"""What was decided for hosts whose networks look like this: `<home>/net/<fingerprint>.json`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shanty.launch.finding import Finding, Level
from shanty.launch.network.choose import Choice
from shanty.launch.network.diagnosis import Verdict
from shanty.launch.network.measure import Contact, Measured, Pace, Pair
from shanty.launch.network.route import Interface, Rail, Route
from shanty.launch.network.topology import Network
from shanty.runtime.rundir import read_json, write_json

_FORM = 1  # of the files; those of another form are not read
_LIFE = 7 * 86400.0  # seconds after which is measured anew, whatever the hosts look like
_LIFE_BROKEN = 600.0  # the same where a network was broken, since somebody may mend it


def load(home: Path, fingerprint: str) -> tuple[Measured, Choice, float] | None:
    """What was measured and chosen, and its age in seconds; None where nothing fresh is known."""
    value = read_json(_path(home, fingerprint))
    if value is None or value.pop("sum", "") != _sum(value) or value["form"] != _FORM:
        return None
    age = time.time() - value["time"]
    measured = measured_from_json(value["measured"])
    contacts = [one for each in measured.contacts.values() for one in each.values()]
    life = _LIFE if all(one.ok for one in contacts) else _LIFE_BROKEN
    return (measured, _choice(value["choice"]), max(0.0, age)) if -60 < age < life else None


def save(home: Path, fingerprint: str, measured: Measured, choice: Choice) -> None:
    """Keep it, and remove what is too old; a home that cannot be written costs time, no run."""
    folder = _path(home, fingerprint).parent
    value = {
        "form": _FORM,
        "time": time.time(),
        "measured": measured_to_json(measured),
        "choice": choice_to_json(choice),
    }
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{fingerprint}.json", {**value, "sum": _sum(value)})
        for path in folder.glob("*.json"):
            if time.time() - path.stat().st_mtime > _LIFE:
                path.unlink()


def _sum(value: Mapping[str, Any]) -> str:
    """By which a file is known to be as it was written; any other one is none."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def measured_to_json(measured: Measured) -> dict[str, Any]:
    """All that was measured as plain JSON."""
    return {
        "hosts": list(measured.hosts),
        "whole": measured.whole,
        "networks": [_network_to_json(network) for network in measured.networks],
        "contacts": {
            name: [
                [*pair, one.kind, one.text, one.via, one.seconds] for pair, one in contacts.items()
            ]
            for name, contacts in measured.contacts.items()
        },
        "paces": {
            name: [[*pair, pace.rate, pace.latency] for pair, pace in paces.items()]
            for name, paces in measured.paces.items()
        },
        "together": [
            {"networks": list(names), "rates": [[*pair, *rates] for pair, rates in each.items()]}
            for names, each in measured.together.items()
        ],
    }


def measured_from_json(value: Mapping[str, Any]) -> Measured:
    """The inverse of `measured_to_json`."""
    return Measured(
        tuple(value["hosts"]),
        tuple(_network(entry) for entry in value["networks"]),
        {
            name: {_pair(row): Contact(*row[2:]) for row in rows}
            for name, rows in value["contacts"].items()
        },
        {
            name: {_pair(row): Pace(*row[2:]) for row in rows}
            for name, rows in value["paces"].items()
        },
        {
            tuple(entry["networks"]): {_pair(row): tuple(row[2:]) for row in entry["rates"]}
            for entry in value["together"]
        },
        value["whole"],
    )


def choice_to_json(choice: Choice) -> dict[str, Any]:
    """A choice as plain JSON."""
    return {
        "route": [ends_to_json(rail.interfaces) for rail in choice.route.rails],
        "reason": choice.reason,
        "verdicts": {name: asdict(verdict) for name, verdict in choice.verdicts.items()},
        "findings": [finding.to_json() for finding in choice.findings],
    }


def ends_to_json(ends: Mapping[str, Interface]) -> dict[str, list[Any]]:
    """The interface of each host: name, address, prefix."""
    return {host: [end.name, end.address, end.prefix] for host, end in ends.items()}


def _network_to_json(network: Network) -> dict[str, Any]:
    return {
        "name": network.name,
        "ends": ends_to_json(network.ends),
        "down": sorted(network.down),
        "doubled": sorted(network.doubled),
        "speeds": dict(network.speeds),
        "ssh": network.ssh,
    }


def _network(value: Mapping[str, Any]) -> Network:
    return Network(
        value["name"],
        _ends(value["ends"]),
        frozenset(value["down"]),
        frozenset(value["doubled"]),
        value["speeds"],
        value["ssh"],
    )


def _choice(value: Mapping[str, Any]) -> Choice:
    return Choice(
        Route(tuple(Rail(_ends(ends)) for ends in value["route"])),
        {name: Verdict(**verdict) for name, verdict in value["verdicts"].items()},
        tuple(
            Finding(**{**finding, "level": Level(finding["level"])})
            for finding in value["findings"]
        ),
        value["reason"],
    )


def _ends(value: Mapping[str, Iterable[Any]]) -> dict[str, Interface]:
    return {host: Interface(*end) for host, end in value.items()}


def _pair(row: list[Any]) -> Pair:
    return row[0], row[1]


def _path(home: Path, fingerprint: str) -> Path:
    return home / "net" / f"{fingerprint}.json"
