"""`Waiting`: the requests of one rank that the others have not all submitted yet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from shanty.torch.hvd.ledger import Ledger
from shanty.torch.hvd.requests import HorovodInternalError, Name, Request, Signature

ENOUGH = 1 << 20  # bytes that need not wait for company
_LINGER = 5e-3  # seconds that less than that does, where nobody says how long
_LEISURE = 0.1  # the same of all requests where there is no core for communication


def wait_for_company(cycle_time: float | None, spare: bool) -> tuple[float, float]:
    """Seconds that requests wait for others to travel with, and bytes that need not.

    cycle_time: as set by the user, if so. spare: whether there are cores, or there is a network,
    that work while a rank computes. Else nothing is gained by an early start, and the thread that
    waits for other ranks takes half of its core from the one that computes.
    """
    if cycle_time is not None:
        return cycle_time, ENOUGH
    return (_LINGER, ENOUGH) if spare else (_LEISURE, math.inf)


class Waiting:
    """By name, in the order of submission. For one thread at a time, but for `claim`.

    mask: bits of those that have a number. unknown: how many have none. fresh: when the first was
    added that was not offered yet, by time.monotonic(); 0 if all were.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._requests: dict[Name, Request] = {}
        self._held: list[Request] = []  # unnamed ones whose turn has not come
        self._names: set[Name] = set()  # of named ones under way
        self._last: dict[Name, tuple[Signature, int]] = {}  # of those that had a number
        self.mask = 0
        self.unknown = 0
        self.fresh = 0.0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def claim(self, label: Name) -> bool:
        """Whether the name is free, which it then is no more until it has ended. Any thread."""
        if label in self._names:
            return False
        self._names.add(label)
        return True

    def find(self, label: Name) -> Request | None:
        """The one with this name."""
        return self._requests.get(label)

    def add(self, request: Request) -> bool:
        """One more; false where an unnamed one of long ago has its name, and it is to follow."""
        label = request.label
        if label in self._requests:
            self._held.append(request)
            return False
        self._requests[label] = request
        last = self._last.get(label)
        if last is not None and request.asks(last[0]):
            request.signature, number = last
            request.number = number
            self.mask |= 1 << number
        else:
            request.signature = request.key()
            self._number(request)
            if request.number >= 0:
                self._last[label] = request.signature, request.number
        self.fresh = self.fresh or request.since
        return True

    def finish(
        self, labels: Iterable[Name], error: HorovodInternalError | None = None
    ) -> list[Request]:
        """End those with these names, where there are any; those that may be added after that."""
        numbers = 0
        for label in labels:
            request = self._requests.pop(label, None)
            if request is None:  # of a rank that has joined
                continue
            if request.number >= 0:
                numbers |= 1 << request.number
            else:
                self.unknown -= 1
            self._names.discard(label)
            request.finish(error)
        self.mask &= ~numbers
        freed, self._held = self._held, []
        return freed

    def fail(self, error: HorovodInternalError) -> None:
        """End all of them."""
        for request in [*self, *self._held]:
            self._names.discard(request.label)
            request.finish(HorovodInternalError(f"{request} failed: {error}"))
        self._requests.clear()
        self._held.clear()
        self.mask = self.unknown = 0

    def renumber(self, *, anew: bool) -> None:
        """The ledger has changed. anew: what had numbers has others now."""
        self.mask = self.unknown = 0
        if anew:
            self._last.clear()
        for request in self:
            self._number(request)

    def _number(self, request: Request) -> None:
        request.number = self._ledger.number(request.signature)
        if request.number < 0:
            self.unknown += 1
        else:
            self.mask |= 1 << request.number
