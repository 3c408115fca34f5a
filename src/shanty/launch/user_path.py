"""Reads a path that a user has typed."""

from __future__ import annotations

import os
from pathlib import Path


def user_path(text: str) -> Path:
    """The path, with `~` and `~ann` expanded; a path with an unknown user stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (Path's own raises for such a user)
