"""Ranges in hosts' names, as Slurm writes them: `gpu[1-3]` is gpu1, gpu2 and gpu3."""

from __future__ import annotations

import re

from shanty.runtime.errors import UsageError

_RANGE = re.compile(r"\[([0-9,\s-]+)\]")
_MOST = 10_000  # hosts of a range


def spread(text: str) -> list[str]:
    """Return the parts between commas, each range written out: `n[08-10]` is n08, n09, n10.

    UsageError for a range that is none. An IPv6 address in brackets stays as it is.
    """
    parts = [part.strip() for part in re.split(r",(?![^\[\]]*\])", text)]
    return [host for part in parts for host in _spread(part)]


def _spread(part: str) -> list[str]:
    found = _RANGE.search(part)
    if found is None:
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    made: list[str] = []
    for piece in found[1].split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"[{found[1]}] is no range, in {part!r}", fix="write gpu[1-8]")
        end = int(last) if dash else int(first)
        if not int(first) <= end < int(first) + _MOST:
            raise UsageError(f"the range {piece.strip()} has no end, in {part!r}")
        width = len(first) if first.startswith("0") else 0
        made += [f"{before}{number:0{width}d}" for number in range(int(first), end + 1)]
    return [whole for each in made for whole in _spread(each + after)]
