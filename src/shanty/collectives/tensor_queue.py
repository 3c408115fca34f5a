"""The tensor queue of one process set: what was submitted on this rank, and is not done yet.

`TensorQueue` takes it from the threads of the script, `PendingRequests` keeps it by name while the
other ranks have not all submitted it. An allreduce in place of a tensor with a name is only an
entry at first. The negotiator takes the entries of many calls at once, and compares them, all at
once too, with those of an earlier step (`Pattern`): where nothing has changed, as is usual, they
stay together (`Bundle`) until they are done. Where something has, or they cannot be done at once,
each becomes a `Request` of its own. Importing this starts no MPI.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from shanty.collectives.errors import DuplicateNameError, HorovodInternalError
from shanty.collectives.plan import Batch
from shanty.collectives.request import (
    DeviceOf,
    Driver,
    Kind,
    Name,
    Op,
    Request,
    Signature,
    Tensor,
    TensorEntry,
    on_host,
)
from shanty.collectives.response_cache import ResponseCache

ENOUGH = 1 << 20  # bytes that do not wait for others to be fused with
_LINGER = 5e-3  # seconds that less than that does, unless HOROVOD_CYCLE_TIME is set
_LEISURE = 0.1  # the same for all requests where all cores compute
_UNNAMED = 128  # unnamed requests of a kind under way at a time; the next ones wait their turn
_FEW = 8  # entries for which a pattern is not worth its while
_PATTERNS = 64  # that are kept


class TensorQueue:
    """Requests and entries that any threads put in, and the negotiator takes out.

    enough: bytes that are worth waking its own thread for. nbytes: put in since the negotiator
    set it to 0. latest: when the last of them were, by time.monotonic(). names: of the named
    requests under way, by kind; the end of a request removes its name.
    """

    def __init__(self, negotiator: Driver, enough: float) -> None:
        self.enough = enough
        self.nbytes = 0
        self.latest = 0.0
        self.names: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        self._negotiator = negotiator
        self._weighs = enough < math.inf
        self._counts = dict.fromkeys(Kind, 0)  # of unnamed requests
        self._requests: deque[Request] = deque()
        self._entries: list[TensorEntry] = []
        self._noted = self.names[Kind.ALLREDUCE]
        self._since = 0.0  # when the first entry was put in
        self._asleep = False
        self._bell = threading.Lock()  # what the negotiator's thread sleeps on
        self._bell.acquire()
        self._closed: HorovodInternalError | None = None
        self._rejecting = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._requests or self._entries)

    # ---- for callers -----------------------------------------------------------------------

    def put(self, request: Request) -> None:
        """Put in a request, which gets a name where it has none.

        Raises HorovodInternalError when one of the same name is under way, or after `close`.
        """
        kind = request.kind
        self._check_open(kind)
        if request.name is None:
            count = self._counts[kind]
            self._counts[kind] = count + 1
            request.name = f"noname.{count % _UNNAMED}"
        elif request.name in self.names[kind]:
            raise _taken(str(request))
        else:
            self.names[kind].add(request.name)
        request.label = request.name, kind
        request.since = time.monotonic()
        request.negotiator = self._negotiator
        self._requests.append(request)
        self._weigh(request.nbytes)
        if self._asleep:
            self.ring()
        if self._closed is not None:
            self.reject()

    def add(self, name: str, tensor: Tensor, op: Op) -> TensorEntry:
        """Put in an allreduce of one tensor in place, in host memory; not of Adasum.

        Thousands of them may be made in a step: what can be done later is not done here.
        """
        names, entries = self._noted, self._entries
        self._check_open(Kind.ALLREDUCE)
        if name in names:
            raise _taken(f"{Kind.ALLREDUCE}.{name}")
        names.add(name)
        if not entries:
            self._since = time.monotonic()
        made = TensorEntry(name, tensor, op, self._negotiator)
        entries.append(made)
        if self._weighs:
            self._weigh(tensor.nbytes)
        if self._asleep:
            self.ring()
        if self._closed is not None:
            self.reject()
        return made

    def ring(self) -> None:
        """Wake the negotiator's thread."""
        self._asleep = False
        with suppress(RuntimeError):  # awake: it will look before it sleeps
            self._bell.release()

    # ---- for the negotiator ----------------------------------------------------------------------

    @property
    def counts(self) -> tuple[int, ...]:
        """How many requests without a name there were, of each kind."""
        return tuple(self._counts.values())

    def count_from(self, counts: Iterable[Sequence[int]]) -> None:
        """Number those that come from the largest of the ranks' counts on."""
        self._counts = dict(zip(Kind, map(max, zip(*counts, strict=True)), strict=True))

    @property
    def since(self) -> float:
        """The time.monotonic() when the first entry was put in that was not taken yet; else 0."""
        if self._entries and not self._since:  # it came while others were taken
            self._since = time.monotonic()
        return self._since

    def take(self) -> Request | None:
        """Take the next one of the requests."""
        try:
            return self._requests.popleft()
        except IndexError:
            return None

    def take_entries(self) -> tuple[list[TensorEntry], float]:
        """Take all entries so far; returns when the first of them was put in, too.

        Take requests before: then none of them has come after an entry that is left.
        """
        since, self._since = self._since, 0.0
        taken = self._entries[:]
        del self._entries[: len(taken)]  # and none that has come meanwhile
        return taken, since or time.monotonic()

    def sleep(self, seconds: float, *, lightly: bool) -> None:
        """Until the bell rings. lightly: it need not for what is put in."""
        self._asleep = not lightly
        if lightly or not self:
            self._bell.acquire(timeout=seconds)
        self._asleep = False

    def close(self, error: HorovodInternalError) -> None:
        """Have all requests in the queue, and all later ones, fail with this error."""
        self._closed = error
        self.reject()

    def reject(self) -> None:
        """Fail what has come all the same: this is called on both sides."""
        with self._rejecting:
            entries, since = self.take_entries()
            late = [*iter(self.take, None), *(each.request(since) for each in entries)]
            for request in late:
                request.finish(HorovodInternalError(f"{request} failed: {self._closed}"))

    def _check_open(self, kind: Kind) -> None:
        if self._closed is not None:
            raise HorovodInternalError(f"{kind.value} failed: {self._closed}")

    def _weigh(self, nbytes: int) -> None:
        self.latest = time.monotonic()
        before = self.nbytes
        self.nbytes = after = before + nbytes
        if before < self.enough <= after:
            self.ring()


def _taken(name: str) -> DuplicateNameError:
    return DuplicateNameError(
        f"{name} is under way already: a name can be used again when its request has ended "
        "(synchronize). Give each tensor a name of its own."
    )


class Pattern:
    """Entries that all ranks have agreed on before. mask: the bits of their numbers."""

    def __init__(self, entries: Sequence[TensorEntry], mask: int) -> None:
        tensors = [each.tensor for each in entries]
        self.mask = mask
        self.names = [each.name for each in entries]
        self._ops = [each.op for each in entries]
        self._dtypes = [each.dtype for each in tensors]
        self._shapes = [each.shape for each in tensors]
        self._planned: Sequence[Batch] = ()
        self._places: list[list[int]] = []

    def fits(self, entries: Sequence[TensorEntry], tensors: Sequence[Tensor]) -> bool:
        """Return true if these are the same."""
        return (
            [each.name for each in entries] == self.names
            and [each.op for each in entries] == self._ops
            and [each.dtype for each in tensors] == self._dtypes
            and [each.shape for each in tensors] == self._shapes
        )

    def places(self, planned: Sequence[Batch]) -> list[list[int]]:
        """Return which of the entries each batch of a plan for all of them is made of."""
        if self._planned is not planned:
            place = {name: i for i, name in enumerate(self.names)}
            self._places = [[place[str(item.name[0])] for item in each.items] for each in planned]
            self._planned = planned
        return self._places


class Bundle:
    """Entries that fit a pattern. since: when the first was submitted, by time.monotonic()."""

    def __init__(
        self, entries: list[TensorEntry], tensors: list[Tensor], pattern: Pattern, since: float
    ) -> None:
        self.entries = entries
        self.mask, self.names, self.since = pattern.mask, pattern.names, since
        self._tensors = tensors
        self._pattern = pattern
        self._ended: list[tuple[Request, list[int], HorovodInternalError | None]] = []

    def run(
        self,
        planned: Sequence[Batch],
        run: Callable[[Batch, Sequence[Request], None], HorovodInternalError | None],
    ) -> None:
        """Have it done by `run`, as is planned."""
        for batch, places in zip(planned, self._pattern.places(planned), strict=True):
            tensors = [self._tensors[i] for i in places]
            first = self.entries[places[0]]
            whole = Request(Kind.ALLREDUCE, first.name, tensors, tensors, op=first.op)
            self._ended.append((whole, places, run(batch, (whole,), None)))

    def finish(self) -> None:
        """End the requests that were done, and wake the threads that wait."""
        for whole, places, error in self._ended:
            whole.finish(error)
            whole.outputs = whole.results = ()  # an entry that is kept must not keep them all
            for i in places:
                self.entries[i].outcome = whole


def wait_for_company(cycle_time: float | None, spare: bool) -> tuple[float, float]:
    """Return the seconds that requests wait for others to travel with, and bytes that need not.

    cycle_time: set by the user, or None. spare: whether cores, or a network, can work while a rank
    computes. Otherwise an early start gains nothing, and the thread that waits for other ranks
    takes half of its core from the computation.
    """
    if cycle_time is not None:
        return cycle_time, ENOUGH
    return (_LINGER, ENOUGH) if spare else (_LEISURE, math.inf)


class PendingRequests:
    """Requests under way by name, in the order of submission. For one thread at a time.

    names: of those under way, by kind, out of which those that end are taken. mask: bits of those
    that have a number. unknown: how many have none. fresh: when the first was added that was not
    offered yet, by time.monotonic(); 0 if all were. bundle: entries that came as they came before;
    a look for single requests turns them into such, and removes the bundle.
    """

    def __init__(
        self, cache: ResponseCache, names: dict[Kind, set[str]], device: DeviceOf = on_host
    ) -> None:
        self._cache = cache
        self._device = device
        self._names = names
        self._requests: dict[Name, Request] = {}
        self._held: list[Request] = []  # unnamed ones whose turn has not come
        self._patterns: dict[tuple[str, int], Pattern] = {}  # by which steps are recognised
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
        """Return the one with this name."""
        self.unbundle()
        return self._requests.get(label)

    def first(self) -> str:
        """Return the name of the request that has waited longest; empty for none.

        Another thread may ask, too; it gets a RuntimeError where requests change at that moment.
        """
        first, bundle = next(iter(self._requests.values()), None), self.bundle
        if bundle is not None and (first is None or bundle.since < first.since):
            return f"{Kind.ALLREDUCE}.{bundle.names[0]}"
        return str(first or "")

    def oldest(self) -> float:
        """Return the seconds that this one has waited; 0 for none. Also for other threads."""
        since, bundle = [each.since for each in islice(self._requests.values(), 1)], self.bundle
        since += [bundle.since] if bundle is not None else []
        return time.monotonic() - min(since) if since else 0.0

    def add_entries(self, entries: list[TensorEntry], since: float) -> None:
        """Add entries that came together, the first of them at that time by time.monotonic()."""
        self.unbundle()
        self.bundle = self._recognised(entries, since)
        if self.bundle is not None:
            self.mask |= self.bundle.mask
            self.fresh = self.fresh or since
            return
        for each in entries:
            self.add(each.request(since))
        self._learn(entries)

    def _recognised(self, entries: list[TensorEntry], since: float) -> Bundle | None:
        """Return these as a bundle; None where they are not as they were before."""
        pattern = self._patterns.get((entries[0].name, len(entries)))
        if pattern is None:
            return None
        tensors = [each.tensor for each in entries]
        return Bundle(entries, tensors, pattern, since) if pattern.fits(entries, tensors) else None

    def _learn(self, entries: Sequence[TensorEntry]) -> None:
        """Remember entries that have become requests, if those have numbers."""
        made = [each.outcome for each in entries]
        numbers = [each.number for each in made if each is not None and each.number >= 0]
        if len(entries) < _FEW or len(numbers) < len(entries):
            return
        if len(self._patterns) >= _PATTERNS:
            self._patterns.clear()
        mask = sum(1 << number for number in numbers)  # each has its own
        self._patterns[entries[0].name, len(entries)] = Pattern(entries, mask)

    def unbundle(self) -> None:
        """Make requests of what is bundled, if anything is."""
        if self.bundle is not None:
            bundle, self.bundle = self.bundle, None
            fresh = self.fresh
            for each in bundle.entries:
                self.add(each.request(bundle.since))
            self.fresh = fresh

    def finish_bundle(self) -> None:
        """End what is bundled, which was done."""
        if self.bundle is not None:
            bundle, self.bundle = self.bundle, None
            self.mask &= ~bundle.mask
            self._names[Kind.ALLREDUCE].difference_update(bundle.names)
            bundle.finish()

    def add(self, request: Request) -> bool:
        """Add one; false where an unnamed one of long ago has its name, and it is to follow."""
        label = request.label
        if label in self._requests:
            self._held.append(request)
            return False
        self._requests[label] = request
        last = self._last.get(label)
        if last is not None and request.asks(last[0], self._device):
            request.signature, number = last
            request.number = number
            self.mask |= 1 << number
        else:
            request.signature = request.key(self._device)
            self._number(request)
            if request.number >= 0:
                self._last[label] = request.signature, request.number
        self.fresh = self.fresh or request.since
        return True

    def finish(
        self, labels: Iterable[Name], error: HorovodInternalError | None = None
    ) -> list[Request]:
        """End those with these names, if any; returns those that may be added after that."""
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

    def renumber(self, *, afresh: bool) -> None:
        """Take the numbers of a changed cache. afresh: earlier numbers are void."""
        self.unbundle()
        self.mask = self.unknown = 0
        if afresh:
            self._last.clear()
            self._patterns.clear()
        for request in self:
            self._number(request)

    def _free(self, label: Name) -> None:
        name, kind = label
        if name is not None:
            self._names[kind].discard(name)

    def _number(self, request: Request) -> None:
        request.number = self._cache.number(request.signature)
        if request.number < 0:
            self.unknown += 1
        else:
            self.mask |= 1 << request.number
