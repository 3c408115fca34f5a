"""What a command works with: its user's home folder of shanty, environment and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from shanty.launch.settings import Settings


def _discard(_text: str) -> None:
    """Discard a message."""


class Surroundings(NamedTuple):
    """The user's home folder of shanty, environment and settings, and how to reach the user.

    `say` receives what is being done, `warn` what is not as it should be; `terminal` is true where
    ssh may ask a person for something. `brings` is false where images are only looked at.
    """

    home: Path
    environ: Mapping[str, str]
    settings: Settings
    say: Callable[[str], None] = _discard
    warn: Callable[[str], None] = _discard
    terminal: bool = False
    brings: bool = True
