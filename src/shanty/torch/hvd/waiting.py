"""`Waiting`: the requests of one rank that the others have not all submitted yet."""

from __future__ import annotations

import time
from collections.abc import Iterator

from shanty.torch.hvd.ledger import Ledger, Name
from shanty.torch.hvd.requests import HorovodInternalError, Kind, Request, Signature


class Waiting:
    """By name, in the order of submission. For one thread at a time, but for `claim`.

    mask: bits of those that have a number. unknown: how many have none. fresh: when the first was
    added that was not offered yet, by time.monotonic(); 0 if all were.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._requests: dict[Name, Request] = {}
        self._held: list[Request] = []  # unnamed ones whose turn has not come
        self._names: set[tuple[str | None, Kind]] = set()  # of named ones under way
        self.mask = 0
        self.unknown = 0
        self.fresh = 0.0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def claim(self, request: Request) -> bool:
        """Whether its name is free, which it then is no more until it has ended. Any thread."""
        name = request.name, request.kind
        if name in self._names:
            return False
        self._names.add(name)
        return True

    def find(self, key: Signature) -> Request | None:
        """The one with this name."""
        return self._requests.get(key[:2])

    def add(self, request: Request) -> bool:
        """One more; false where an unnamed one of long ago has its name, and it is to follow."""
        key = request.key()
        if key[:2] in self._requests:
            self._held.append(request)
            return False
        self._requests[key[:2]] = request
        self._number(request, key)
        self.fresh = self.fresh or time.monotonic()
        return True

    def finish(self, name: Name, error: HorovodInternalError | None = None) -> list[Request]:
        """End the one with this name, if there is one; those that may be added after that."""
        request = self._requests.pop(name, None)
        if request is None:  # of a rank that has joined
            return []
        if request.number >= 0:
            self.mask &= ~(1 << request.number)
        else:
            self.unknown -= 1
        self._names.discard((request.name, request.kind))
        request.finish(error)
        freed, self._held = self._held, []
        return freed

    def fail(self, error: HorovodInternalError) -> None:
        """End all of them."""
        for request in [*self, *self._held]:
            self._names.discard((request.name, request.kind))
            request.finish(HorovodInternalError(f"{request} failed: {error}"))
        self._requests.clear()
        self._held.clear()
        self.mask = self.unknown = 0

    def renumber(self) -> None:
        """The ledger has changed."""
        self.mask = self.unknown = 0
        for request in self:
            self._number(request, request.key())

    def _number(self, request: Request, key: Signature) -> None:
        request.number = self._ledger.number(key)
        if request.number < 0:
            self.unknown += 1
        else:
            self.mask |= 1 << request.number
