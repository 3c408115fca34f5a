"""Suggests a known name for an unknown one, and finds the line that has it."""

from __future__ import annotations

import re
from typing import Iterable

_ALIKE = 0.6  # difflib's ratio from which two names count as similar


def closest(name: str, known: Iterable[str], cutoff: float = _ALIKE) -> str:
    """Returns the known name that is most similar to `name`; "" if none is similar enough."""
    from difflib import get_close_matches  # slow to import, and needed for errors only

    return "".join(get_close_matches(name, list(known), 1, cutoff))


def nearest(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = _ALIKE) -> str:
    """Returns "did you mean X?" with the closest known name, in any case, else `otherwise`."""
    names = list(known)
    lower = {each.lower(): each for each in names}
    found = closest(name, names, cutoff) or lower.get(closest(name.lower(), lower, cutoff), "")
    return f"did you mean {found}?" if found else otherwise


def place(path: object, text: str, key: str) -> str:
    """Returns "FILE, line N" for the first line of `text` that has `key` as a key, else "FILE"."""
    entry = re.compile(rf"""(?:.*[\s\[{{,-])?["']?{re.escape(key)}["']?\s*[\]=:]""")
    for number, line in enumerate(text.splitlines(), 1):
        if entry.match(line):
            return f"{path}, line {number}"
    return str(path)
