"""`Waiting`: the requests of one rank that the others have not all submitted yet."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from shanty.torch.hvd.ledger import Ledger
from shanty.torch.hvd.notes import Bundle, Note, Patterns
from shanty.torch.hvd.requests import HorovodInternalError, Kind, Name, Request, Signature

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
    """By name, in the order of submission. For one thread at a time.

    names: of those under way, by kind, out of which those that end are taken. mask: bits of those
    that have a number. unknown: how many have none. fresh: when the first was added that was not
    offered yet, by time.monotonic(); 0 if all were. bundle: notes that came as they came before;
    whoever looks for single requests finds them as such, and the bundle gone.
    """

    def __init__(self, ledger: Ledger, names: dict[Kind, set[str]]) -> None:
        self._ledger = ledger
        self._names = names
        self._requests: dict[Name, Request] = {}
        self._held: list[Request] = []  # unnamed ones whose turn has not come
        self._patterns = Patterns()
        self.bundle: Bundle | None = None
        self._last: dict[Name, tuple[Signature, int]] = {}  # of those that had a number
        self.mask = 0
        self.unknown = 0
        self.fresh = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests) or self.bundle is not None

    def __iter__(self) -> Iterator[Request]:
        self.unbundle()
        return iter(self._requests.values())

    def find(self, label: Name) -> Request | None:
        """The one with this name."""
        self.unbundle()
        return self._requests.get(label)

    def first(self) -> str:
        """The name of the one that has waited longest; empty for none."""
        first, bundle = next(iter(self._requests.values()), None), self.bundle
        if bundle is not None and (first is None or bundle.since < first.since):
            return f"{Kind.ALLREDUCE}.{bundle.names[0]}"
        return str(first or "")

    def oldest(self) -> float:
        """Seconds that this one has waited; 0 for none."""
        since = [each.since for each in islice(self._requests.values(), 1)]
        since += [self.bundle.since] if self.bundle is not None else []
        return time.monotonic() - min(since) if since else 0.0

    def add_notes(self, notes: list[Note], since: float) -> None:
        """Some that came together, the first of them at that time by time.monotonic()."""
        self.unbundle()
        self.bundle = self._patterns.bundle(notes, since)
        if self.bundle is not None:
            self.mask |= self.bundle.mask
            self.fresh = self.fresh or since
            return
        for each in notes:
            self.add(each.request(since))
        self._patterns.learn(notes)

    def unbundle(self) -> None:
        """Make requests of what is bundled, if anything is."""
        if self.bundle is not None:
            bundle, self.bundle = self.bundle, None
            fresh = self.fresh
            for request in bundle.requests():
                self.add(request)
            self.fresh = fresh

    def finish_bundle(self) -> None:
        """End what is bundled, which was done."""
        if self.bundle is not None:
            bundle, self.bundle = self.bundle, None
            self.mask &= ~bundle.mask
            self._names[Kind.ALLREDUCE].difference_update(bundle.names)
            bundle.finish()

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
            self._free(label)
            request.finish(error)
        self.mask &= ~numbers
        freed, self._held = self._held, []
        return freed

    def fail(self, error: HorovodInternalError) -> None:
        """End all of them."""
        for request in [*self, *self._held]:
            self._free(request.label)
            request.finish(HorovodInternalError(f"{request} failed: {error}"))
        self._requests.clear()
        self._held.clear()
        self.mask = self.unknown = 0

    def renumber(self, *, anew: bool) -> None:
        """The ledger has changed. anew: what had numbers has others now."""
        self.unbundle()
        self.mask = self.unknown = 0
        if anew:
            self._last.clear()
            self._patterns.forget()
        for request in self:
            self._number(request)

    def _free(self, label: Name) -> None:
        name, kind = label
        if name is not None:
            self._names[kind].discard(name)

    def _number(self, request: Request) -> None:
        request.number = self._ledger.number(request.signature)
        if request.number < 0:
            self.unknown += 1
        else:
            self.mask |= 1 << request.number
