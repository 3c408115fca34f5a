"""Where a rank stands among the others: on its host, and across hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Seat = tuple[int, int]
"""Local rank, and how many ranks there are on that host."""


@dataclass(frozen=True, slots=True)
class Place:
    """The answers of rank(), size() and their kin.

    local_rank, local_size: among the ranks of the same host.
    cross_rank, cross_size: among the ranks of all hosts that have the same local rank.
    homogeneous: whether every host has the same number of ranks.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


def find(rank: int, seats: Sequence[Seat]) -> Place:
    """The place of `rank` in a world whose ranks have these seats, in their order."""
    local_rank, local_size = seats[rank]
    peers = [other for other, seat in enumerate(seats) if seat[0] == local_rank]
    return Place(
        rank=rank,
        size=len(seats),
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=peers.index(rank),
        cross_size=len(peers),
        homogeneous=len({size for _, size in seats}) == 1,
    )


def told(rank: int, size: int, env: Mapping[str, str]) -> Seat | None:
    """What the run says of this rank's seat; None where it says nothing, or speaks of another
    world: then its variables are left over from an outer one, or the world is only a part.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    words = [env.get(name, "") for name in names]
    if not all(word.isascii() and word.isdigit() for word in words):
        return None
    said_rank, said_size, local_rank, local_size = map(int, words)
    if (said_rank, said_size) != (rank, size) or not local_rank < local_size <= size:
        return None
    return local_rank, local_size
