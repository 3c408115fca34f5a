"""Reads older spellings of options, and notes the current ones: they work in this release.

`Option.old` has older flags. A key of shanty.toml was the option's field before.
"""

from __future__ import annotations

from collections.abc import Mapping

from shanty.client.context import note
from shanty.launch.options.option import Option

_NAMES = {"environment": "packages"}  # fields

_said: set[str] = set()


def current_name(name: str) -> str:
    """Return the name that an option in Python has now."""
    if name in _NAMES:
        say(f"{name}=", f"{_NAMES[name]}=")
    return _NAMES.get(name, name)


def current_key(key: str, table: str, options: Mapping[str, Option], where: str) -> str:
    """Return the key that a key in this table of shanty.toml has now."""
    field = _NAMES.get(key, key)
    for option in options.values():
        if field in (option.field, option.field.removeprefix(f"{table}_")):
            say(f"{key} in {where}", option.key.removeprefix(f"{table}_"))
            return option.key.removeprefix(f"{table}_")
    return key


def say(old: str, new: str) -> None:
    """Note once what an old spelling is now."""
    if old not in _said:
        _said.add(old)
        note(f"{old} is now {new}; the old name works in this release only")
