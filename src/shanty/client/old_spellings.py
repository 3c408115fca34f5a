"""Reads spellings of options from before: they work in this release, and say what is written now.

`Option.old` has an option's older flags, and its older key in shanty.toml.
"""

from __future__ import annotations

from collections.abc import Mapping

from shanty.client.context import note
from shanty.launch.options.option import Option

NAMES = {"environment": "packages"}  # in Python

_said: set[str] = set()


def current_key(key: str, options: Mapping[str, Option], where: str) -> str:
    """Return the key that a key of shanty.toml has now."""
    for option in options.values():
        if key in option.old.split():
            return noted(key, option.key, f" in {where}")
    return key


def current_name(name: str) -> str:
    """Return the name that an option in Python has now."""
    return noted(f"{name}=", f"{NAMES[name]}=")[:-1] if name in NAMES else name


def noted(old: str, new: str, where: str = "") -> str:
    """Return the new spelling; the first time, with a note for the user."""
    if old not in _said:
        _said.add(old)
        note(f"{old}{where} is now {new}; the old name works in this release only")
    return new
