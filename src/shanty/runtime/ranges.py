"""Ranges in hosts' names, as Slurm writes them: `gpu[1-3]` is gpu1, gpu2 and gpu3."""

import re
from typing import List

MOST_HOSTS = 100_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(part: str) -> List[str]:
    """Return the hosts of one part of a list, as in `gpu[01-02,4]-ib`. ValueError for others."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    found: List[str] = []
    tails = expand(tail) if tail else [""]
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise ValueError(f"{part!r} is not a list of nodes")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise ValueError(f"{part!r} is not a list of nodes")
        numbers = (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
        found += [f"{head}{number}{each}" for number in numbers for each in tails]
    return found
