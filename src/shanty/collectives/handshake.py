"""Handshakes: before a collective runs, its ranks agree that they mean the same one.

The ranks reduce a few words without blocking, and look at the result now and then. So a rank that
waits for a late one sleeps instead of spinning inside MPI, can keep a time limit, and learns of a
mismatch before memory is touched. After the handshake the collective itself is a blocking call
for which no rank is late. It needs a communicator and keys, no tensors. Importing this starts MPI.
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Self

from mpi4py import MPI

from shanty.collectives import call_sites, survivors
from shanty.collectives.errors import CommunicationError, CommunicationTimeoutError, Errors
from shanty.collectives.watchdog import Inquiry, State, Warned, Watchdog

CHECKED = os.environ.get("SHANTY_CHECK", "0") not in ("", "0")
"""True with SHANTY_CHECK=1: note call sites, and inquire where ranks wait long."""

_SPIN = 50e-6  # seconds of looking without a pause, where every rank has a core
_YIELD = 2e-3  # seconds of looking that only lets others go first
_LONGEST = 1e-3  # seconds between two looks at most
_SLACK = 0.05  # the part of the time waited so far that a look may come late
_SOON = 0.5  # seconds in which no rank gives up, unless its time limit is shorter
_ANSWERS = 2.0  # seconds that other ranks get to answer

UNUSABLE = "the group cannot be used any more, since an earlier call on it was given up:"

_digests: dict[Key, int] = {}

Key = tuple[object, ...]
"""The call as all ranks must make it; `repr` spells it the same on all of them."""


def digest(key: Key) -> int:
    """Return a number of 62 bits that stands for the key on every rank."""
    found = _digests.get(key)
    if found is None:
        if len(_digests) > 10_000:  # shapes that never come again
            _digests.clear()
        made = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        found = _digests[key] = int.from_bytes(made, "big") >> 2
    return found


_given_up: list[Channel] = []
"""Channels with a handshake that never ends: MPI may still write to their words."""


class Channel:
    """A group's communicator, and the words of its handshakes. For one thread at a time.

    comm: for MPI's own collectives and the user's messages. apart: the same ranks, for collectives
    that are built on messages, which no message of the user may get into. identity: tells the
    group from all others that there were, on each of its ranks. watchdog: asks ranks where they
    are. kernels: of the tensors that go over it; None where none do. errors: the classes to raise.
    crowded: more ranks than cores on some host. spread: over several hosts. spare: whether that,
    or two cores or more for each rank, can work while a rank computes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        identity: tuple[int, ...],
        watchdog: Watchdog,
        kernels: Any = None,
        errors: Errors = Errors(),  # noqa: B008 (it cannot be changed)
    ) -> None:
        self._begun = time.monotonic()  # of the last handshake; here, of what all do together
        self.kernels = kernels
        self.errors = errors
        self.comm = comm
        self.apart = survivors.track(comm.Dup())
        self.rank = comm.rank
        self.size = comm.size
        self.crowded, tight, self.spread = _hosts(comm)
        self.spare = self.spread or not tight
        self.identity = identity
        self.watchdog = watchdog
        self.members = world_ranks(comm)
        self.broken: CommunicationError | None = None
        self.met: Handshake | None = None  # the last that all agreed on
        self._own, self.agreed = array("q", [0] * 7), array("q", [0] * 7)
        self._out, self._in = (_words(each) for each in (self._own, self.agreed))

    @classmethod
    def form(
        cls, comm: MPI.Intracomm, state: Callable[[], State], kernels: Any = None, serial: int = 0
    ) -> Self:
        """Make a channel with a watchdog of its own, which answers with `state`. Collective.

        serial: tells it from other channels of the same ranks.
        """
        watchdog = Watchdog(survivors.track(comm.Dup()), state)
        return cls(comm, (serial, *world_ranks(comm)), watchdog, kernels)

    def free(self) -> None:
        """Give both communicators back to MPI; collective."""
        self.apart.Free()
        self.comm.Free()

    @property
    def largest(self) -> int:
        """The bytes of the rank that moves most, by the last handshake."""
        return self.agreed[2]

    @property
    def even(self) -> int:
        """The number of the last handshake that all ranks called even; -1 if not the same."""
        agreed = self.agreed
        return agreed[3] if agreed[3] == -agreed[4] else -1

    def suppose(self, nbytes: int) -> None:
        """Proceed as after a handshake for a call that moves `nbytes`, known to all ranks."""
        self.agreed[2], self.agreed[3], self.agreed[4] = nbytes, -1, 1

    def begin(self, number: int, nbytes: int, even: int, limit: float) -> MPI.Request:
        """Begin a handshake; `agreed` has its outcome after the request is complete.

        number: of the call. nbytes, even: see Handshake. limit: seconds that this rank waits.
        """
        now = time.monotonic()
        apart, self._begun = now - self._begun, now
        own = self._own
        own[0], own[1], own[2] = number, -number, nbytes
        own[3], own[4] = even, -even
        own[5], own[6] = int(apart * 1e6), int(-1e6 * min(limit, _SOON))
        return self.comm.Iallreduce(self._out, self._in, MPI.MAX)

    @property
    def late(self) -> bool:
        """True if so much time passed on some rank between the last two handshakes that another
        may have given up before that rank came. The same on all ranks, by the clocks of all.
        """
        agreed = self.agreed
        return agreed[5] > -agreed[6]

    def give_up(self, error: CommunicationError) -> None:
        """Allow no more calls: another rank may come to a handshake that is over here."""
        self.broken = error
        _given_up.append(self)
        first = str(error).partition("\n")[0]
        timed_out = isinstance(error, CommunicationTimeoutError)
        self.watchdog.warn(self.members, self.identity, Warned(f"gave up: {first}", timed_out))

    def report(self, ranks: Iterable[int], own: object) -> str:
        """Return what these ranks of the world do now, a line each; they get time to answer."""
        answers = self.watchdog.ask(ranks, _ANSWERS)
        return self.lines(ranks, answers, own)

    def lines(self, ranks: Iterable[int], answers: dict[int, State], own: object) -> str:
        """Return the same of answers that have come. own: the call in which this rank waits."""
        lines = []
        for rank in ranks:
            if rank == MPI.COMM_WORLD.rank:
                lines.append(f"  rank {rank} waits in {own}")
            elif rank in answers:
                lines.append(f"  rank {rank} {answers[rank].text}")
            else:
                lines.append(f"  rank {rank} gives no answer: it is outside of the mpi backend")
        return "\n".join(lines)


class Handshake:
    """The agreement of all ranks on one call: `wait` for them, then `compare`.

    key: the call as all must make it. nbytes: how much this rank moves. limit: seconds that it
    waits for the others. place: the group, in words. even: a number that makes the call a
    simple one where all ranks say the same; -1 for none.
    """

    __slots__ = (
        *("channel", "_even", "_key", "_limit", "_nbytes"),
        *("_number", "_place", "_request", "site"),
    )

    def __init__(
        self, channel: Channel, key: Key, nbytes: int, limit: float, place: object, even: int = -1
    ) -> None:
        self.channel = channel
        self._key = key
        self._nbytes = nbytes
        self._limit = limit
        self._place = place
        self._even = even
        self._number = digest(key)
        self._request: MPI.Request | None = None
        self.site: call_sites.CallSite = call_sites.caller() if CHECKED else None

    def __str__(self) -> str:
        call, *rest = self._key
        where = f" at {call_sites.spell(self.site)}" if self.site else ""
        return f"{call}({', '.join(map(_word, rest))}){where}"

    def attempt(self, seconds: float) -> bool:
        """Begin, and look for so long whether all have come."""
        request = self._begin()
        end = time.perf_counter() + seconds
        spin = end if not self.channel.crowded else 0.0
        while not request.Test():
            now = time.perf_counter()
            if now > end:
                return False
            if now > spin:
                os.sched_yield()
        return True

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Return when all ranks have come, having begun if need be.

        meanwhile: is called between two looks. Raises CommunicationTimeoutError after the limit,
        and CommunicationError when another rank gave up, or when it is certain that some will
        never come (with SHANTY_CHECK=1). The group is broken then.
        """
        channel, limit = self.channel, self._limit
        request = self._request or self._begin()
        start = time.monotonic()
        spin = 0.0 if channel.crowded else _SPIN
        inquiry: Inquiry | None = None
        while not request.Test():
            waited = time.monotonic() - start
            if waited < spin:
                continue
            meanwhile()
            if waited < _YIELD:
                os.sched_yield()
                continue
            if waited > limit:
                raise self._late()
            time.sleep(min(_LONGEST, waited * _SLACK))
            channel.watchdog.answer()
            warning = channel.watchdog.warning(channel.identity)
            if warning is not None:
                raise self._warned(warning)
            if not CHECKED:
                continue
            if inquiry is None:
                inquiry = Inquiry(channel.watchdog, channel.members)
            answers = inquiry.verdict()
            if answers is not None and not request.Test():
                raise self._hopeless(answers)

    def compare(self) -> None:
        """Raise MismatchError, on every rank, unless all ranks make the same call.

        Where one came so late that another may have given up before, there is another handshake:
        a rank that gave up does not come. Raises as `wait` then.
        """
        channel = self.channel
        if channel.late:
            self._request = None
            self.wait(lambda: None)
        if channel.agreed[0] == self._number == -channel.agreed[1]:
            channel.met = self
            return
        calls = channel.comm.allgather(str(self))
        lines = [f"  rank {rank}: {call}" for rank, call in enumerate(calls)]
        hint = "" if CHECKED else "\nWith SHANTY_CHECK=1 each line says where it was called."
        raise channel.errors.mismatch(
            f"The ranks of {self._place} called different things at the same point:\n"
            + "\n".join(lines)
            + f"\nAll ranks must make the same calls in the same order.{hint}"
        )

    def _begin(self) -> MPI.Request:
        channel = self.channel
        if channel.broken is not None:
            broken = f"{self} on {self._place}: {UNUSABLE} {channel.broken}"
            raise channel.errors.failed(broken)
        self._request = channel.begin(self._number, self._nbytes, self._even, self._limit)
        return self._request

    def _here(self) -> str:
        return f"{self} on {str(self._place).partition(',')[0]}"

    def _late(self) -> CommunicationTimeoutError:
        channel = self.channel
        what = f"{self} on {self._place} was not complete after {self._limit:g} s"
        text = f"{what}: not all ranks came."
        channel.give_up(channel.errors.late(text))  # first: one may come any moment now
        channel.broken = error = channel.errors.late(f"{text}\n{self._report()}")
        return error

    def _warned(self, warning: Warned) -> CommunicationError:
        errors = self.channel.errors
        kind = errors.late if warning.timed_out else errors.failed
        self.channel.broken = error = kind(
            f"{self} on {self._place}: {warning.text}\n{self._report()}"
        )
        _given_up.append(self.channel)
        return error

    def _report(self) -> str:
        return self.channel.report(self.channel.members, self._here())

    def _hopeless(self, answers: dict[int, State]) -> CommunicationError:
        channel = self.channel
        error = channel.errors.failed(
            f"{self} on {self._place} can never complete: some of its ranks will not come.\n"
            + channel.lines(sorted({*channel.members, *answers}), answers, self._here())
        )
        channel.give_up(error)
        return error


def world_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return the communicator's ranks, as ranks of the world."""
    return tuple(comm.group.Translate_ranks(range(comm.size), MPI.COMM_WORLD.group))


def _hosts(comm: MPI.Intracomm) -> tuple[bool, bool, bool]:
    """Return whether some host has more of these ranks than a rank has cores there, more than half
    of the cores of all its ranks; and whether there are several hosts.
    """
    here = survivors.track(comm.Split_type(MPI.COMM_TYPE_SHARED))
    linux = hasattr(os, "sched_getaffinity")
    own = os.sched_getaffinity(0) if linux else set(range(os.cpu_count() or 1))
    cores = set[int]().union(*here.allgather(own))
    facts = here.size > len(own), 2 * here.size > len(cores), here.size < comm.size
    here.Free()
    crowded, tight, spread = map(any, zip(*comm.allgather(facts), strict=True))
    return crowded, tight, spread


def _words(memory: array[int]) -> tuple[object, int, MPI.Datatype]:
    address, length = memory.buffer_info()
    return MPI.buffer.fromaddress(address, 8 * length), length, MPI.INT64_T


def _word(part: object) -> str:
    """Spell a part of a key, a dtype without its module."""
    module, _, name = str(part).rpartition(".")
    return name if module.isidentifier() else str(part)
