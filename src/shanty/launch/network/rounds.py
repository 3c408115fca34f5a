"""Who tries whom: pairs of hosts by number, and rounds of pairs that do not disturb each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Talk = tuple[str, str, str]  # the network, the host that begins and the other one, by name

_ALL_PAIRS = 16  # hosts up to which every one tries every other one
_ALL_PACES = 8  # hosts up to which `every` has all pairs


def pairs(count: int) -> list[tuple[int, int]]:
    """Who tries whom, by number: all up to 16 hosts; of more, as `some_pairs`."""
    if count > _ALL_PAIRS:
        return some_pairs(count)
    return [(i, j) for i in range(count) for j in range(count) if i != j]


def some_pairs(count: int) -> list[tuple[int, int]]:
    """Those that collectives use: i and i + 1, i + 2, i + 4 …, in both directions. They are
    n log n, and show every host that cannot be reached."""
    steps = [1 << k for k in range((count - 1).bit_length())]
    there = {(i, (i + step) % count) for i in range(count) for step in steps}
    return sorted(there | {(j, i) for i, j in there})


def ring(count: int) -> list[list[tuple[int, int]]]:
    """The edges of a ring in rounds in which every host is in one of them at most."""
    edges = [(i, (i + 1) % count) for i in range(count)]
    last = edges[-1:] if count % 2 or count == 2 else []
    rest = edges[: count - len(last)]
    return [found for found in (rest[::2], rest[1::2], last) if found]


def tournament(count: int) -> list[list[tuple[int, int]]]:
    """All ordered pairs in such rounds (the circle method: one stays, the others go around)."""
    seats = [*range(count), *([-1] if count % 2 else [])]  # who is paired with -1 waits
    half, rounds = len(seats) // 2, []
    for _ in range(len(seats) - 1):
        met = [(a, b) for a, b in zip(seats[:half], seats[: half - 1 : -1], strict=True)]
        games = [(a, b) for a, b in met if a >= 0 and b >= 0]
        rounds += [games, [(b, a) for a, b in games]]
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def few(talks: Sequence[Talk], each: int) -> tuple[list[Talk], list[Talk]]:
    """Those of `talks` in which no host has more than `each`, and the rest."""
    busy: Counter[str] = Counter()
    taken: list[Talk] = []
    rest: list[Talk] = []
    for talk in talks:
        ends = talk[1:]
        fits = max(busy[name] for name in ends) < each
        (taken if fits else rest).append(talk)
        if fits:
            busy.update(ends)
    return taken, rest


def every(count: int) -> list[list[tuple[int, int]]]:
    """All pairs where they are few, else a ring."""
    return tournament(count) if count <= _ALL_PACES else ring(count)
