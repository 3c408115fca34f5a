"""Where the package itself is installed on this machine."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1]
