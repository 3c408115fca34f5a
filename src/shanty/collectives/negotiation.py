"""`Negotiator`: brings the same requests of all ranks together, and has them done. Starts MPI.

Ranks submit in any order. A thread of each rank takes part in cycles: in one small reduction, which
does not block, the ranks announce what they are ready for (`response_cache`). What all are ready
for is done at once, in the same order everywhere (`executor`). A cycle begins when a rank has
something to announce, and ends when the last rank takes part; so no messages are sent while all
compute. Requests wait a moment for others to be fused with (`tensor_queue`), unless a caller waits
for them.
"""

from __future__ import annotations

import math
import os
import threading
import time
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from mpi4py import MPI

from shanty.collectives import call_sites, survivors, wait_report
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.executor import Executor
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Kernels
from shanty.collectives.plan import Batch, Planner
from shanty.collectives.request import Kind, Name, Request, TensorEntry
from shanty.collectives.response_cache import RequestList, ResponseCache
from shanty.collectives.settings import Settings
from shanty.collectives.stall_inspector import StallInspector, gone
from shanty.collectives.tensor_queue import PendingRequests, TensorQueue, wait_for_company
from shanty.collectives.timeline import Timeline
from shanty.collectives.watchdog import Activity, State

# Flags of a cycle.
KNOWN = 1  # all that I wait for has a number
CALM = 2  # I need no lists of the others
STAYS = 4  # I do not shut down
JOINED = 8  # I have called join()
WAITS = 16  # I wait for something
PLAIN = KNOWN | CALM | STAYS

_BURST = 1e-3  # seconds, though, in which more may follow at once
_HERE = 2e-3  # seconds that a thread which waits looks for the others by itself
_AWAKE = 1.0  # seconds after which it leaves that to the other thread, so that it is seen to wait
_IDLE = 1.0  # seconds after which a rank without requests takes part in a cycle all the same
_LONGEST = 1e-3  # seconds between two looks at most while something waits; else:
_LONGEST_IDLE = 2e-2
_SLACK = 0.05  # the part of the time waited so far that a look may come late
_PATIENCE = 10.0  # seconds that `stop` grants the other ranks to take notice


class Wait(NamedTuple):
    """What the main thread has waited for, last of all, and since when by time.monotonic()."""

    request: Request | None = None
    since: float = 0.0

    def __str__(self) -> str:
        return str(self.request) if self.seconds() else ""

    def seconds(self) -> float:
        """Seconds of it so far; 0 where it has ended, or was interrupted."""
        if self.request is None or self.request.done or not self.request.awaited:
            return 0.0
        return time.monotonic() - self.since


class CacheCoordinator:
    """The reduction of a cycle: a few flags, and a bit for each request in the response cache.

    All of it goes through one reduction (AND): a bit that any rank has not set is not set in the
    result. For one communicator, and one thread at a time.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._own, self._agreed = array("Q", [0]), array("Q", [0])
        self._number = 1  # of words that are under way

    def begin(self, flags: int, offer: int, known: int) -> MPI.Request:
        """Begin to reduce the flags, and the bits of `offer`, of which there are `known`."""
        self._number = words = 1 + (known + 63) // 64
        if len(self._own) < words:
            self._own, self._agreed = array("Q", [0] * words), array("Q", [0] * words)
        own = flags | offer << 64
        memoryview(self._own).cast("B")[: 8 * words] = own.to_bytes(8 * words, "little")
        out, into = ((each, words, MPI.UINT64_T) for each in (self._own, self._agreed))
        return self._comm.Iallreduce(out, into, MPI.BAND)

    def agreed(self) -> tuple[int, int]:
        """Return the flags and the bits that all ranks have set, once the request is complete."""
        words = memoryview(self._agreed).cast("B")[: 8 * self._number]
        agreed = int.from_bytes(words, "little")
        return agreed & ((1 << 64) - 1), agreed >> 64


class Negotiator:
    """The requests of one process set on this rank. Collective to make over its members.

    rank, size: within the set. ranks: its members, as ranks of `world`, which is Horovod's. number:
    of the set. kernels: of the tensors. cycles: how many there were. timeline: records what
    happens, if not None.
    """

    def __init__(
        self,
        world: MPI.Intracomm,
        ranks: tuple[int, ...],
        settings: Settings,
        number: int,
        kernels: Kernels,
    ) -> None:
        if survivors.is_elastic() and len(ranks) == world.size:
            made = world.Dup()  # Open MPI's other call waits for a lost rank indefinitely
        else:
            made = world.Create_group(world.group.Incl(list(ranks)), number)
        comm = survivors.track(made)
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._at = Channel.form(comm, self._state, kernels, number)
        self.rank, self.size, self.ranks = comm.rank, comm.size, ranks
        self.number, self.cycles = number, 0
        self.timeline: Timeline | None = None
        self._linger, enough = wait_for_company(settings.cycle_time, self._at.spare)
        self._cache = ResponseCache(settings.cache_capacity)
        self._executor = Executor(self._at)
        self._planner = Planner(settings.fusion_threshold, settings.cache_capacity)
        self._inspector = StallInspector(self.rank, self.ranks, settings)
        self._join_all = settings.join_all
        # Shared with the callers' threads:
        self.queue = TensorQueue(self, enough)
        self._urgent = self._leaving = self._driven = False
        self._over = False
        self._wait = Wait()
        # For the thread that has the turn:
        self._turn = threading.Lock()
        self._pending = PendingRequests(self._cache, self.queue.names, kernels.device)
        self._last = time.monotonic()  # when the last cycle ended
        self._all_waited = False
        self._join: Request | None = None
        self._joined_at = 0
        self._away: frozenset[int] = frozenset()  # ranks that have joined, as far as all know
        self._coordinator = CacheCoordinator(comm)
        self._request: MPI.Request | None = None  # of the cycle that has begun
        self._begun, self._whole = 0.0, True  # when; whether all ranks are at the same point
        wait_report.watch(number, self._pending)
        self._thread = threading.Thread(target=self._run, name=f"shanty-hvd-{number}", daemon=True)
        self._thread.start()

    # ---- for callers -----------------------------------------------------------------------

    def request_of(self, entry: TensorEntry) -> Request:
        """Return the request that this entry has become, or becomes now since its wait is long.

        Raises HorovodInternalError if the entry was interrupted.
        """
        with self._turn:
            if entry.outcome is None and not self._over:
                try:
                    self._take_entries()
                    self._pending.unbundle()
                except BaseException as error:
                    self._break(error)
                    raise
        if self._over:
            self.queue.reject()
        if entry.outcome is None:
            raise HorovodInternalError(f"{entry} failed: it was interrupted.")
        return entry.outcome

    def hurry(self) -> None:
        """Start soon: a caller polls."""
        self._urgent = True
        self.queue.ring()

    def stop(self) -> None:
        """Leave: what the other ranks still wait for in this set fails there. Idempotent."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._leaving = True
            self.queue.ring()
            self._thread.join(_PATIENCE)
            wait_report.end(self.number, self._pending)  # though it may be stuck in MPI

    # ---- the thread, and callers that wait ---------------------------------------------------

    def drive(self, request: Request | TensorEntry) -> None:
        """In a caller that waits for this request: do the thread's work for as long as it proceeds
        without delay. Handing the work over would take longer than a small reduction.
        """
        self._urgent = self._driven = True
        if isinstance(request, Request) and request.awaited:
            self._wait = Wait(request, time.monotonic())
        end = time.perf_counter() + _HERE
        last = end + _AWAKE
        try:
            while self._turn.acquire(timeout=_HERE):
                try:
                    if request.done:
                        break
                    self._urgent = self._urgent or self._has_news
                    moved = self._advance()
                finally:
                    self._turn.release()
                now = time.perf_counter()
                if moved:
                    end = min(now + _HERE, last)
                if now > end:
                    break
                if not moved:
                    os.sched_yield()
        finally:
            self._driven = False
        # Another thread may have driven as well, for what no cycle has announced yet.
        self._urgent = self._has_news
        if self._pending or self.queue:  # of which the thread may not know yet
            self.queue.ring()

    @property
    def _has_news(self) -> bool:
        """Whether something was put in since the latest cycle began."""
        return self._pending.fresh > 0 or bool(self.queue)

    def _run(self) -> None:
        while not self._over:
            nap, known = _HERE, True
            if not self._driven:  # else a caller does it meanwhile
                with self._turn:
                    # What comes after this is not reckoned with, and has to wake the thread.
                    known = self._pending.fresh > 0 or self.queue.since > 0
                    nap = 0.0 if self._advance() else self._nap(time.monotonic())
                wait_report.refresh(self.number)
            if nap > 0 and not self._over:
                self.queue.sleep(nap, lightly=known or nap <= _LONGEST)
        wait_report.end(self.number, self._pending)
        if self._whole:
            self._at.free()
            self._at.watchdog.free()
        del self._executor, self._planner  # an error may keep this object, and not their memory

    def _advance(self) -> bool:
        """Proceed as far as possible without waiting; returns whether a cycle ended."""
        if self._over:
            return False
        try:
            if self._request is None:
                self._take()
                if time.monotonic() < self._time():
                    return False
                self.queue.nbytes, self._urgent = 0, False
                self._take()  # what is submitted from here on can say again that it is urgent
                self._take_entries()
                self._begin()
            assert self._request is not None
            if not self._request.Test():
                waited = time.monotonic() - self._begun
                if waited > _LONGEST_IDLE:
                    self._at.watchdog.answer()
                    self._inspector.look(self._at, waited, self._pending.oldest())
                return False
            self._request = None
            self._conclude()
        except BaseException as error:
            self._break(error)
            if not isinstance(error, Exception):  # an interrupt of the thread that drives
                raise
        return True

    def _break(self, error: BaseException) -> None:
        """End in the middle of a cycle: the other ranks may be at another point."""
        self._whole = False
        if not isinstance(error, HorovodInternalError):
            error = HorovodInternalError(f"{type(error).__name__}: {error}")
        self._end(error)

    def _time(self) -> float:
        """Return the time when the next cycle is to begin."""
        if self._leaving or self._urgent:
            return 0.0
        queue = self.queue
        if (fresh := self._pending.fresh or queue.since) > 0:
            enough = queue.nbytes >= queue.enough
            return min(fresh + self._linger, queue.latest + _BURST if enough else math.inf)
        if self._pending or self._join is not None:
            # Where all ranks wait and none has news, another cycle at once would change nothing.
            pause = min(_LONGEST_IDLE, max(2e-4, _SLACK * self._pending.oldest()))
            return self._last + pause if self._all_waited else 0.0
        return self._last + _IDLE

    def _nap(self, now: float) -> float:
        """Return the seconds until there may be something to do."""
        if self._request is None:
            return max(self._time() - now, 0.0)
        longest = _LONGEST if self._pending or self.queue else _LONGEST_IDLE
        return min(longest, max(5e-5, _SLACK * (now - self._begun)))

    def _take(self) -> None:
        while (request := self.queue.take()) is not None:
            self._take_one(request)

    def _take_entries(self) -> None:
        entries, since = self.queue.take_entries()
        if entries:
            self._pending.add_entries(entries, since)
            if self.timeline is not None:
                for each in entries:
                    self.timeline.negotiate_start(str(each), Kind.ALLREDUCE.name)

    def _take_one(self, request: Request) -> None:
        if request.kind is Kind.JOIN:
            self._join, self._joined_at = request, self.cycles
            self._pending.fresh = self._pending.fresh or time.monotonic()
            return
        if not self._pending.add(request):
            return
        if self.timeline is not None:
            self.timeline.negotiate_start(str(request), request.kind.name)

    def _begin(self) -> None:
        """Announce what this rank waits for."""
        known = len(self._cache)
        offer = self._pending.mask if self._join is None else (1 << known) - 1
        request = self._coordinator.begin(self._flags(), offer, known)
        self._pending.fresh = 0.0
        self._begun = time.monotonic()
        self._request = request

    def _conclude(self) -> None:
        """Do what follows, once all ranks have taken part."""
        flags, known = self._coordinator.agreed()
        self.cycles += 1
        self._all_waited = bool(flags & WAITS)
        if self.timeline is not None:
            self.timeline.mark_cycle()
        if flags & PLAIN == PLAIN:
            planned = self._planner.known(known)
            if planned is None:
                planned = self._planner.plan(self._cache.keys(known), known)
            bundle = self._pending.bundle
            if bundle is not None and bundle.mask == known and self.timeline is None:
                bundle.run(planned, self._executor.run)
                self._pending.finish_bundle()
            else:
                self._perform(planned)
        else:
            self._confer()
        if flags & JOINED and self._join is not None:
            self._complete_join()
        self._last = time.monotonic()

    def _flags(self) -> int:
        flags = STAYS if not self._leaving else 0
        flags |= KNOWN if not self._pending.unknown else 0
        # While ranks have joined, lists must be exchanged: what is possible depends on who joined.
        oldest, waited = self._pending.oldest(), self._wait.seconds()
        calm = not self._inspector.due(oldest, waited) and not self._away
        flags |= CALM if calm and self._join is None else 0
        if self._join is not None:
            return flags | JOINED | WAITS
        return flags | (WAITS if self._pending else 0)

    def _confer(self) -> None:
        """Exchange everything with the other ranks, and do what follows."""
        self._take()
        self._take_entries()
        wait = self._wait
        own = RequestList(
            keys=tuple(each.signature for each in self._pending),
            joined=self._join is not None,
            leaving=self._leaving,
            awaits=str(wait),
            waited=wait.seconds(),
            oldest=self._pending.oldest(),
            place=call_sites.spell(call_sites.main_thread()),
            join_all=self._join_all,
        )
        lists = self._at.comm.allgather(own)
        agreed = self._cache.agree(lists)
        self._away = agreed.joined
        if agreed.renumbered:
            self._planner.renumbered()
        self._pending.renumber(afresh=agreed.renumbered)
        for name, text in agreed.mismatched.items():
            self._finish((name,), HorovodInternalError(text))
            if self.timeline is not None:
                self.timeline.negotiate_end(f"{name[1]}.{name[0]}")
        self._perform(self._planner.plan(agreed.ready))
        if agreed.left:
            self._end(gone(agreed.left, self.ranks, self._leaving))
            return
        error = self._inspector.deadlock(agreed, lists)
        if error is not None:
            self._give_up(error)
        elif (error := self._inspector.verdict(agreed, lists)) is not None:
            self._end(error)

    # ---- what all ranks do together ----------------------------------------------------------

    def _perform(self, batches: Iterable[Batch]) -> None:
        find, stand_in = self._pending.find, self._executor.stand_in
        for batch in batches:
            requests = [find(each.name) or stand_in(each.key) for each in batch.items]
            if self.timeline is not None:
                for each in requests:
                    self.timeline.negotiate_end(str(each))
            error = self._executor.run(batch, requests, self.timeline)
            self._finish(batch.names, error)

    def _finish(self, names: Iterable[Name], error: HorovodInternalError | None = None) -> None:
        for request in self._pending.finish(names, error):
            self._take_one(request)

    def _complete_join(self) -> None:
        request, self._join = self._join, None
        assert request is not None
        mine = self._joined_at, self.rank, self.queue.counts
        every = self._at.comm.allgather(mine)
        self._away = frozenset()
        self.queue.count_from(counts for _, _, counts in every)  # they had others to do
        request.value = self.ranks[max(every)[1]]
        request.finish()

    def _end(self, error: HorovodInternalError) -> None:
        self._over = True
        self._give_up(error)
        self.queue.close(error)

    def _give_up(self, error: HorovodInternalError) -> None:
        """Fail all that waits on this rank."""
        self._pending.fail(error)
        if self._join is not None:
            self._join.finish(HorovodInternalError(f"join failed: {error}"))
            self._join = None

    def _state(self) -> State:
        if waits := self._pending.first():
            return State(Activity.WAITS, f"waits for {waits}", self.cycles)
        return State(
            Activity.RUNS, f"is at {call_sites.spell(call_sites.main_thread())}", self.cycles
        )
