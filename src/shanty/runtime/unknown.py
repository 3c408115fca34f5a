"""Says of a name that is not known where it stands, and which known name may be meant."""

from __future__ import annotations

import re
from typing import Iterable


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Returns "did you mean X?" with the known name most like `name`, else `otherwise`."""
    from difflib import get_close_matches  # only for errors: it takes time to import

    names = list(known)
    found = get_close_matches(name, names, 1) or get_close_matches(name.lower(), names, 1)
    return f"did you mean {found[0]}?" if found else otherwise


def place(path: object, text: str, key: str) -> str:
    """Returns "FILE, line N" for the first line of `text` that has `key` as a key, else "FILE"."""
    entry = re.compile(rf"""(?:.*[\s\[{{,-])?["']?{re.escape(key)}["']?\s*[\]=:]""")
    for number, line in enumerate(text.splitlines(), 1):
        if entry.match(line):
            return f"{path}, line {number}"
    return str(path)
