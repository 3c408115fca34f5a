"""What a script is told of the names that it uses: once each, on rank 0."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import xgboost
from xgboost import collective

_OURS = (str(Path(__file__).parent), str(Path(xgboost.__file__).parent))
_told: set[str] = set()
_said: list[str] = []


class OldNameWarning(UserWarning):
    """A script uses names of an older XGBoost, which were taken as today's."""


def tell(notes: Sequence[str]) -> None:
    """Warn of those notes that are new, in one warning; on rank 0 only."""
    new = [note for note in dict.fromkeys(notes) if note not in _told]
    _told.update(new)
    if new and collective.get_rank() == 0:
        text = f"shanty: taken as today's XGBoost has it: {'; '.join(new)}."
        warnings.warn(text, OldNameWarning, stacklevel=_script_s_level() + 1)


def say(note: str) -> None:
    """Print a note that is none of names, once in a script; for rank 0."""
    if not _said:
        _said.append(note)
        print(f"shanty: {note}.", file=sys.stderr, flush=True)


def _script_s_level() -> int:
    """How many calls up from `tell` the script's own line is."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level - 1
