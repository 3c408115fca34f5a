"""Plans: what is done at once, in which order; the same on all ranks, as they know the same.

A training loop asks for the same again and again, if not always together. So what was found out
about a request is kept, and a whole plan too. Nothing here communicates.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shanty.collectives.request import Kind, Name, Op, Signature

_PLANS = 64  # that are kept


class Item:
    """One request, as all ranks know it.

    name: by which it is found. kinds: type and device of its tensors, which have `shapes`, and
    `sizes` in bytes. alike: equal for reductions that can be done at once; None for all else.
    room: where each tensor lies in memory that many are reduced through, for who does that.
    """

    def __init__(self, key: Signature) -> None:
        name, kind, op, prescale, postscale, _, _, what = key
        self.key = key
        self.kind: Kind = kind
        self.name: Name = (name, kind)
        self.kinds = [(dtype, device) for dtype, _, device in what]
        self.shapes = [shape for _, shape, _ in what]
        self.sizes = [math.prod(shape) * dtype.itemsize for dtype, shape, _ in what]
        self.nbytes = sum(self.sizes)
        self.alike: Hashable = None
        # A group of several types cannot share memory.
        if kind is Kind.ALLREDUCE and op is not Op.ADASUM and len(set(self.kinds)) == 1:
            self.alike = (self.kinds[0], op, prescale, postscale)
        self.room: list[Any] = [None] * len(what)


@dataclass
class Part:
    """Tensors of a batch that have one type: where they are among all of it, and whose they are.

    layout: how they are reduced, once that was decided.
    """

    dtype: Any
    places: list[int]
    tensors: list[tuple[Item, int]]
    layout: Any = None


class Batch:
    """Requests that are done at once: a single one, or reductions that are alike.

    parts: of their tensors, for reductions.
    """

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.kind = items[0].kind
        self.names = [item.name for item in items]
        self.parts: list[Part] = []
        if self.kind is Kind.ALLREDUCE:
            every = [(item, i) for item in items for i in range(len(item.kinds))]
            for kind in dict.fromkeys(items[0].kinds):  # those of a batch have the same ones
                places = [at for at, (item, i) in enumerate(every) if item.kinds[i] == kind]
                self.parts.append(Part(kind[0], places, [every[at] for at in places]))


class Planner:
    """The plans of one process set.

    threshold: bytes that are reduced at once at most; 0 fuses nothing. capacity: how many requests
    are kept at most; beyond it all are forgotten.
    """

    def __init__(self, threshold: int, capacity: int) -> None:
        self._threshold = threshold
        self._capacity = capacity
        self._items: dict[Signature, Item] = {}
        self._plans: dict[int, list[Batch]] = {}

    def known(self, mask: int) -> list[Batch] | None:
        """Return the plan that was made for the requests with these numbers."""
        return self._plans.get(mask)

    def plan(self, keys: Sequence[Signature], mask: int = 0) -> list[Batch]:
        """Return the batches for these requests, to be done in turn. mask: their numbers."""
        if len(self._items) > self._capacity:
            self._items.clear()
            self._plans.clear()
        items = [self._items.get(key) or self._items.setdefault(key, Item(key)) for key in keys]
        made = [Batch(each) for each in self._batches(items)]
        if mask:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[mask] = made
        return made

    def renumbered(self) -> None:
        """Forget the plans: numbers mean something else now."""
        self._plans.clear()

    def _batches(self, items: Sequence[Item]) -> Iterator[list[Item]]:
        groups: dict[Hashable, list[Item]] = {}
        last, group = None, None
        for item in items:
            if group is None or item.alike is None or item.alike != last:
                last = item.alike
                alike = last if last is not None else item  # like no other
                group = groups.setdefault(alike, [])
            group.append(item)
        for group in groups.values():
            batch: list[Item] = []
            size = 0
            for item in group:
                if batch and size + item.nbytes > self._threshold:
                    yield batch
                    batch, size = [], 0
                batch.append(item)
                size += item.nbytes
            yield batch
