"""Makes what was read from files fit to be sent: whatever a run has written, its page is there."""

from __future__ import annotations

import math
from typing import Any

_DEEPEST = 40
_LARGEST = 1 << 63


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as plain JSON: no number that JSON lacks, no half letters, not too deep."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (int, float)):
        return number(value)
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {text(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, depth + 1) for each in value]
    return text(value)


def text(value: Any) -> str:
    """Return a text that has a form in UTF-8; "" for None."""
    if value is None:
        return ""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def number(value: Any) -> Any:
    """Return an int or float that JSON has; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return value if -_LARGEST < value < _LARGEST else None
    return value if math.isfinite(value) else None


def whole(value: Any) -> int | None:
    """Return a whole number; None for what is none."""
    found = number(value)
    return None if found is None else int(found)
