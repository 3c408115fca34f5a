"""The numbers that a run's script logs and that became NaN or infinite. Pure."""

from __future__ import annotations

from typing import Dict, Tuple

from shanty.runtime.messages import Report

_SHOWN = 3  # numbers, and ranks of one, that are named


class NotFinite:
    """At which step each rank had a number first that is not finite."""

    def __init__(self) -> None:
        self._found: Dict[Tuple[str, str], Dict[int, str]] = {}  # by its name and its value

    def add(self, report: Report) -> None:
        """Take a rank's report of one."""
        found = self._found.setdefault((report.text("name"), report.text("value")), {})
        found.setdefault(report.rank, report.text("place"))

    def text(self) -> str:
        """Which logged numbers have become NaN or infinite, on which rank first; "" for none."""
        texts = []
        for (name, value), ranks in self._found.items():
            first, *others = sorted(ranks.items(), key=lambda each: _natural(each[1]))
            text = f"{name} became {value} on rank {first[0]} at {first[1]}"
            if others:
                more = f" and {len(others) - _SHOWN} more ranks" if len(others) > _SHOWN else ""
                shown = (f"on rank {rank} at {at}" for rank, at in others[:_SHOWN])
                text += f", then {', '.join(shown)}{more}"
            texts.append(text)
        more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        return "; ".join(texts[:_SHOWN]) + more


def _natural(at: str) -> float:
    """The number in "step 12"."""
    try:
        return float(at.split()[1])
    except (ValueError, IndexError):
        return 0.0
