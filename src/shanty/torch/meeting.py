"""Meetings: before a collective runs, its ranks come together and agree that they mean the same.

The ranks reduce a few words without blocking, and look at the result now and then. So a rank that
waits for a late one sleeps instead of spinning inside MPI, can keep a time limit, and learns of a
mismatch before memory is touched. Once they have met, the collective itself is a blocking call
that nobody is late for. Importing this module starts MPI.
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Callable, Iterable

from mpi4py import MPI

from shanty.torch import sites
from shanty.torch.rollcall import Inquiry, RollCall, State, Warned
from shanty.torch.work import CommunicationError, CommunicationTimeoutError, MismatchError

CHECKED = os.environ.get("SHANTY_CHECK", "0") not in ("", "0")
"""Whether SHANTY_CHECK=1 asks for call sites and for an inquiry where ranks wait long."""

_SPIN = 50e-6  # seconds of looking without a pause, where every rank has a core
_YIELD = 2e-3  # seconds of looking that only lets others go first
_LONGEST = 1e-3  # seconds between two looks at most
_SLACK = 0.05  # the part of the time waited so far that a look may come late
_SOON = 0.5  # seconds in which no rank gives up, unless its time limit is shorter
_ROLL_CALL = 2.0  # seconds that other ranks get to answer

UNUSABLE = "the group cannot be used any more, since an earlier call on it was given up:"

_digests: dict[Key, int] = {}

Key = tuple[object, ...]
"""What all ranks must agree on, for `repr` to spell the same on all of them."""


def digest(key: Key) -> int:
    """A number of 62 bits that stands for the key on every rank."""
    found = _digests.get(key)
    if found is None:
        if len(_digests) > 10_000:  # shapes that never come again
            _digests.clear()
        made = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        found = _digests[key] = int.from_bytes(made, "big") >> 2
    return found


_given_up: list[Channel] = []
"""Channels with a meeting that never ends: MPI may write to their words for ever."""


class Channel:
    """A group's communicator, and the words that its ranks meet over. For one thread at a time.

    comm: what MPI's own collectives and the user's messages go over. apart: the same ranks, for
    collectives that are built on messages, which no message of the user may get into. identity:
    tells the group from all others that there were, on each of its ranks. rollcall: asks ranks
    where they are. crowded: more ranks than cores on some host. spread: over several hosts.
    spare: whether that, or two cores or more for each rank, can work while a rank computes.
    """

    def __init__(self, comm: MPI.Intracomm, identity: tuple[int, ...], rollcall: RollCall) -> None:
        self._begun = time.monotonic()  # of the last meeting; here, of what all do together
        self.comm = comm
        self.apart = comm.Dup()
        self.rank = comm.rank
        self.size = comm.size
        self.crowded, tight, self.spread = _hosts(comm)
        self.spare = self.spread or not tight
        self.identity = identity
        self.rollcall = rollcall
        self.members = world_ranks(comm)
        self.broken: CommunicationError | None = None
        self.met: Meeting | None = None  # the last that all agreed on
        self._said, self._heard = array("q", [0] * 7), array("q", [0] * 7)
        self._out, self._in = (_words(each) for each in (self._said, self._heard))

    def free(self) -> None:
        """Give both communicators back to MPI; collective."""
        self.apart.Free()
        self.comm.Free()

    @property
    def largest(self) -> int:
        """The bytes of the rank that moves most in the call that was met for last."""
        return self._heard[2]

    @property
    def even(self) -> int:
        """What all ranks said to be even in the call that was met for last; -1 if not the same."""
        heard = self._heard
        return heard[3] if heard[3] == -heard[4] else -1

    def suppose(self, nbytes: int) -> None:
        """Go on as if all had met for a call that moves so many bytes, as all know."""
        self._heard[2], self._heard[3], self._heard[4] = nbytes, -1, 1

    def begin(self, number: int, nbytes: int, even: int, limit: float) -> MPI.Request:
        """Tell the others; `agree` after the request is complete.

        number: of the call. nbytes, even: see Meeting. limit: seconds that this rank waits at most.
        """
        now = time.monotonic()
        apart, self._begun = now - self._begun, now
        said = self._said
        said[0], said[1], said[2] = number, -number, nbytes
        said[3], said[4] = even, -even
        said[5], said[6] = int(apart * 1e6), int(-1e6 * min(limit, _SOON))
        return self.comm.Iallreduce(self._out, self._in, MPI.MAX)

    @property
    def late(self) -> bool:
        """Whether so much time passed on some rank between the last two meetings that another may
        have given up before that rank came. The same on all ranks, by the clocks of all.
        """
        heard = self._heard
        return heard[5] > -heard[6]

    def warning(self) -> Warned | None:
        """What another rank said that gave the group up."""
        return self.rollcall.warning(self.identity)

    def give_up(self, error: CommunicationError) -> None:
        """No more calls on this channel: another rank may come to a meeting that is over here."""
        self.broken = error
        _given_up.append(self)
        first = str(error).partition("\n")[0]
        timed_out = isinstance(error, CommunicationTimeoutError)
        self.rollcall.warn(self.members, self.identity, Warned(f"gave up: {first}", timed_out))

    def report(self, ranks: Iterable[int], own: object) -> str:
        """What these ranks of the world do now, a line each; they get a second to answer."""
        answers = self.rollcall.hold(ranks, _ROLL_CALL)
        return self.lines(ranks, answers, own)

    def lines(self, ranks: Iterable[int], answers: dict[int, State], own: object) -> str:
        """The same of answers that have come. own: the call in which this rank waits."""
        lines = []
        for rank in ranks:
            if rank == MPI.COMM_WORLD.rank:
                lines.append(f"  rank {rank} waits in {own}")
            elif rank in answers:
                lines.append(f"  rank {rank} {answers[rank].text}")
            else:
                lines.append(f"  rank {rank} gives no answer: it is outside of the mpi backend")
        return "\n".join(lines)

    def agree(self, number: int) -> bool:
        """Whether all ranks told the same number."""
        heard = self._heard
        return heard[0] == number and heard[1] == -number


class Meeting:
    """One coming together, for one call.

    key: what all ranks must agree on. nbytes: what this rank moves. limit: seconds that it waits
    for the others. place: the group, in words. even: a number that makes the call a simple one
    where all ranks say the same; -1 for none.
    """

    __slots__ = (
        *("_channel", "_even", "_key", "_limit", "_nbytes"),
        *("_number", "_place", "_request", "site"),
    )

    def __init__(
        self,
        channel: Channel,
        key: Key,
        nbytes: int,
        limit: float,
        place: object,
        even: int = -1,
    ) -> None:
        self._channel = channel
        self._key = key
        self._nbytes = nbytes
        self._limit = limit
        self._place = place
        self._even = even
        self._number = digest(key)
        self._request: MPI.Request | None = None
        self.site: sites.Site = sites.caller() if CHECKED else None

    def __str__(self) -> str:
        call, *rest = self._key
        where = f" at {sites.spell(self.site)}" if self.site else ""
        return f"{call}({', '.join(map(_word, rest))}){where}"

    def try_to_meet(self, seconds: float) -> bool:
        """Begin, and look for so long whether all have come."""
        request = self._begin()
        end = time.perf_counter() + seconds
        spin = end if not self._channel.crowded else 0.0
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
        channel, limit = self._channel, self._limit
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
            channel.rollcall.answer()
            warning = channel.warning()
            if warning is not None:
                raise self._warned(warning)
            if not CHECKED:
                continue
            if inquiry is None:
                inquiry = Inquiry(channel.rollcall, channel.members)
            answers = inquiry.verdict()
            if answers is not None and not request.Test():
                raise self._hopeless(answers)

    def compare(self) -> None:
        """Raise MismatchError, on every rank, unless all ranks met for the same call.

        Where one came so late that another may have given up before, they meet once more: who
        gave up does not come. Raises as `wait` then.
        """
        channel = self._channel
        if channel.late:
            self._request = None
            self.wait(lambda: None)
        if channel.agree(self._number):
            channel.met = self
            return
        calls = channel.comm.allgather(str(self))
        lines = [f"  rank {rank}: {call}" for rank, call in enumerate(calls)]
        hint = "" if CHECKED else "\nWith SHANTY_CHECK=1 each line says where it was called."
        raise MismatchError(
            f"The ranks of {self._place} called different things at the same point:\n"
            + "\n".join(lines)
            + f"\nAll ranks must make the same calls in the same order.{hint}"
        )

    @property
    def broke(self) -> bool:
        """Whether the group cannot be used any more."""
        return self._channel.broken is not None

    def abandon(self, error: CommunicationError) -> None:
        """Give the group up, since this call was cut short and nobody knows how far it came."""
        self._channel.give_up(error)

    def _begin(self) -> MPI.Request:
        channel = self._channel
        if channel.broken is not None:
            raise CommunicationError(f"{self} on {self._place}: {UNUSABLE} {channel.broken}")
        self._request = channel.begin(self._number, self._nbytes, self._even, self._limit)
        return self._request

    def _here(self) -> str:
        return f"{self} on {str(self._place).partition(',')[0]}"

    def _late(self) -> CommunicationTimeoutError:
        channel = self._channel
        what = f"{self} on {self._place} was not complete after {self._limit:g} s"
        text = f"{what}: not all ranks came."
        channel.give_up(CommunicationTimeoutError(text))  # first: one may come any moment now
        error = CommunicationTimeoutError(f"{text}\n{self._report()}")
        channel.broken = error
        return error

    def _warned(self, warning: Warned) -> CommunicationError:
        kind = CommunicationTimeoutError if warning.timed_out else CommunicationError
        error = kind(f"{self} on {self._place}: {warning.text}\n{self._report()}")
        self._channel.broken = error
        _given_up.append(self._channel)
        return error

    def _report(self) -> str:
        return self._channel.report(self._channel.members, self._here())

    def _hopeless(self, answers: dict[int, State]) -> CommunicationError:
        channel = self._channel
        error = CommunicationError(
            f"{self} on {self._place} can never complete: some of its ranks will not come.\n"
            + channel.lines(sorted({*channel.members, *answers}), answers, self._here())
        )
        channel.give_up(error)
        return error


def world_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    """The communicator's ranks, as ranks of the world."""
    return tuple(comm.group.Translate_ranks(range(comm.size), MPI.COMM_WORLD.group))


def _hosts(comm: MPI.Intracomm) -> tuple[bool, bool, bool]:
    """Whether some host has more of these ranks than a rank has cores there, more than half of the
    cores of all its ranks; whether there are several hosts.
    """
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
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
    return str(part).removeprefix("torch.")
