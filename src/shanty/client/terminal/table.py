"""Prints plain tables, and makes short texts for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shanty.runtime.rundir import RunDir, read_json

_SHOWN = 5  # files


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their longest cell; nothing is cut, so a pipe gets it all."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def ago(seconds: float) -> str:
    """Write a time in its largest unit: 12 s, 3 min, 5 h, 2 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def shorten(text: str, width: int) -> str:
    """Put `text` on one line, its end cut when it is longer than `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def left_text(left: Mapping[str, Any]) -> str:
    """Say what ranks have written into their workspace on another host; "" for nothing."""
    if not left:
        return ""
    names = left["files"]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    place = f"{', '.join(names[:_SHOWN])}{more} on {left['host']}, in {left['folder']}"
    return f"{place} (what is saved in shanty.artifacts() comes back)"


def progress_text(run: RunDir) -> str:
    """Say how far the script says it is: `epochs 3/10 (2.5/s)`; "" when it does not say."""
    progress = read_json(run.progress) or {}
    done, total, took = (progress.get(key) for key in ("done", "total", "seconds"))
    if not isinstance(done, int):
        return ""
    text = f"{done}/{total}" if isinstance(total, int) else str(done)
    if progress.get("label"):
        text = f"{progress['label']} {text}"
    if isinstance(took, (int, float)) and took > 0 and done:
        text += f" ({done / took:.3g}/s)"
    return text
