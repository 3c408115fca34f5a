"""Remembers what was measured and chosen: `<home>/net/<fingerprint of the networks>.json`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.launch.network.results import Choice, Measured
from shanty.launch.plain_json import decode, encode
from shanty.runtime.rundir import read_json, write_json

_FORM = 2  # of the files; those of another form are not read
_LIFE = 7 * 86400.0  # seconds after which is measured anew, whatever the hosts look like
_LIFE_BROKEN = 600.0  # the same where a network was broken, since somebody may mend it


def load(home: Path, fingerprint: str) -> tuple[Measured, Choice] | None:
    """Returns what was measured and chosen; None where nothing is fresh."""
    value = read_json(_path(home, fingerprint))
    if value is None or value.pop("sum", "") != _sum(value) or value["form"] != _FORM:
        return None
    age = time.time() - value["time"]
    measured, choice = decode(Measured, value["measured"]), decode(Choice, value["choice"])
    whole = all(one.ok for each in measured.contacts.values() for one in each.values())
    fresh = -60 < age < (_LIFE if whole else _LIFE_BROKEN)
    return (measured, replace(choice, age=max(0.0, age))) if fresh else None


def save(home: Path, fingerprint: str, measured: Measured, choice: Choice) -> None:
    """Keeps it, and removes what is too old; a home that cannot be written costs time, no run."""
    path = _path(home, fingerprint)
    value = {
        "form": _FORM,
        "time": time.time(),
        "measured": encode(measured),
        "choice": encode(choice),
    }
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**value, "sum": _sum(value)})
        for old in path.parent.glob("*.json"):
            if time.time() - old.stat().st_mtime > _LIFE:
                old.unlink()


def _sum(value: Mapping[str, Any]) -> str:
    """Returns a checksum: a file that was changed is not used."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _path(home: Path, fingerprint: str) -> Path:
    return home / "net" / f"{fingerprint}.json"
