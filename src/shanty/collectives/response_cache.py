"""The response cache, and the agreement of ranks: the same on all, since all have the same data.

A request that was agreed on once has a number from then on. In the steady state the ranks exchange
one bit for each number, in one small reduction (`negotiation`). For anything that is new, does not
fit, or takes too long, each rank sends a `RequestList` of all that it waits for, and
`ResponseCache.agree` makes the same `ResponseList` of them everywhere. Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shanty.collectives.request import Kind, Name, Signature, spell

_NOT_WITH_JOIN = (Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER)


class RequestList(NamedTuple):
    """The message of one rank to the others.

    keys: the signatures of all that it waits for, in the order of submission. joined, leaving:
    whether it has called join(), or is about to shut down. awaits, waited: what its main thread
    waits for, in words, empty if that computes; for how many seconds. oldest: seconds that the
    oldest of all has waited. place: where the main thread is in the user's code. join_all: whether
    more than allreduces may be done while ranks have joined.
    """

    keys: tuple[Signature, ...]
    joined: bool = False
    leaving: bool = False
    awaits: str = ""
    waited: float = 0.0
    oldest: float = 0.0
    place: str = ""
    join_all: bool = False


@dataclass
class ResponseList:
    """The conclusion from the lists of all ranks.

    ready: what all ranks (that have not joined) wait for, in the order in which it is to be done.
    mismatched: requests of one name that differ, and in what. missing: the ranks that have not
    submitted what others wait for. joined, left: ranks that have. renumbered: whether numbers mean
    something else from now on.
    """

    ready: list[Signature] = field(default_factory=list)
    mismatched: dict[Name, str] = field(default_factory=dict)
    missing: dict[Name, list[int]] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    left: list[int] = field(default_factory=list)
    renumbered: bool = False


class ResponseCache:
    """The numbers of the requests that were agreed on.

    capacity: how many there are at most; beyond it all are forgotten, and numbers begin at 0 again.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: dict[Signature, int] = {}
        self._keys: list[Signature] = []

    def __len__(self) -> int:
        return len(self._keys)

    def number(self, key: Signature) -> int:
        """Return the number of a request; -1 if the ranks never agreed on it."""
        return self._numbers.get(key, -1)

    def keys(self, mask: int) -> list[Signature]:
        """Return the requests whose bits are set, by number."""
        bits = reversed(f"{mask:b}")
        return [key for key, bit in zip(self._keys, bits, strict=False) if bit == "1"]

    def agree(self, lists: Sequence[RequestList]) -> ResponseList:
        """Conclude from the lists of all ranks, in their order; what is new in it gets numbers."""
        made = ResponseList(
            joined=frozenset(rank for rank, each in enumerate(lists) if each.joined),
            left=[rank for rank, each in enumerate(lists) if each.leaving],
        )
        refuses = bool(made.joined) and not all(each.join_all for each in lists)
        submitted: dict[Name, dict[int, Signature]] = {}
        for rank, each in enumerate(lists):
            for key in each.keys:
                submitted.setdefault(key[:2], {})[rank] = key
        for name, keys in submitted.items():
            missing = [r for r in range(len(lists)) if r not in keys and r not in made.joined]
            first = next(iter(keys.values()))
            if missing:
                made.missing[name] = missing
            elif any(key != first for key in keys.values()):
                lines = [f"  rank {rank}: {spell(key)}" for rank, key in sorted(keys.items())]
                made.mismatched[name] = "\n".join(
                    ["The ranks asked for different things under one name:", *lines]
                )
            elif refuses and first[1] in _NOT_WITH_JOIN:
                who = ", ".join(map(str, sorted(made.joined)))
                made.mismatched[name] = (
                    f"{spell(first)}: not possible with hvd.join, which these ranks (of the set) "
                    f"have called: {who}. Only allreduce is; SHANTY_JOIN_ALL=1 allows the others."
                )
            elif first[1] is Kind.BROADCAST and first[5] in made.joined:
                text = f"{spell(first)}: its root has called join(), and has nothing to send."
                made.mismatched[name] = text
            else:
                made.ready.append(first)
        made.renumbered = self._remember(made.ready)
        return made

    def _remember(self, keys: Iterable[Signature]) -> bool:
        """Number new requests; returns whether all others were forgotten to make room for them."""
        new = [key for key in keys if key not in self._numbers]
        full = len(self._keys) + len(new) > self._capacity
        if full:
            self._numbers.clear()
            self._keys.clear()
            new = new[: self._capacity]
        for key in new:
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return full
