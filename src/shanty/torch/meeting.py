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
from collections.abc import Iterable

from mpi4py import MPI

from shanty.torch import sites
from shanty.torch.rollcall import Inquiry, RollCall, State
from shanty.torch.work import CommunicationError, CommunicationTimeoutError, MismatchError

CHECKED = os.environ.get("SHANTY_CHECK", "0") not in ("", "0")
"""Whether SHANTY_CHECK=1 asks for call sites and for an inquiry where ranks wait long."""

_SPIN = 50e-6  # seconds of looking without a pause, where every rank has a core
_YIELD = 2e-3  # seconds of looking that only lets others go first
_LONGEST = 1e-3  # seconds between two looks at most
_SLACK = 0.05  # the part of the time waited so far that a look may come late
_SOON = 0.5  # seconds in which no rank gives up, unless its time limit is shorter
_ROLL_CALL = 2.0  # seconds that other ranks get to answer

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


class Channel:
    """A group's communicator, and the words that its ranks meet over. For one thread at a time.

    comm: what MPI's own collectives and the user's messages go over. apart: the same ranks, for
    collectives that are built on messages, which no message of the user may get into. crowded:
    more ranks than cores on some host. spread: over several hosts. rollcall: asks the world's
    ranks where they are.
    """

    def __init__(self, comm: MPI.Intracomm, rollcall: RollCall) -> None:
        self.comm = comm
        self.apart = comm.Dup()
        self.rank = comm.rank
        self.size = comm.size
        self.crowded, self.spread = _hosts(comm)
        self.rollcall = rollcall
        world = MPI.COMM_WORLD.group
        self.members = tuple(comm.group.Translate_ranks(range(comm.size), world))
        self.broken: CommunicationError | None = None
        self._last = time.monotonic()  # when all ranks last came together here
        self._said, self._heard = array("q", (0, 0, 0)), array("q", (0, 0, 0))
        self._out, self._in = (_words(each) for each in (self._said, self._heard))

    def free(self) -> None:
        """Give both communicators back to MPI; collective."""
        self.apart.Free()
        self.comm.Free()

    @property
    def largest(self) -> int:
        """The bytes of the rank that moves most in the call that was met for last."""
        return self._heard[2]

    def begin(self, number: int, nbytes: int) -> MPI.Request:
        """Tell the others; `agree` after the request is complete."""
        said = self._said
        said[0], said[1], said[2] = number, -number, nbytes
        return self.comm.Iallreduce(self._out, self._in, MPI.MAX)

    def warning(self, limit: float) -> str:
        """What another rank said when it gave the group up before this one came; empty if none.

        limit: seconds that the call may wait. Looking costs time, and nobody has given up yet
        who met us a moment ago.
        """
        now = time.monotonic()
        since, self._last = now - self._last, now
        return self.rollcall.warning(self.members) if since > min(limit, _SOON) else ""

    def give_up(self, error: CommunicationError) -> None:
        """No more calls on this channel: another rank may come to a meeting that is over here."""
        self.broken = error
        self.rollcall.warn(self.members, f"gave up: {str(error).partition(chr(10))[0]}")

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

    key: what all ranks must agree on. nbytes: what this rank moves. place: the group, in words.
    """

    __slots__ = ("_channel", "_key", "_nbytes", "_number", "_place", "_request", "site")

    def __init__(self, channel: Channel, key: Key, nbytes: int, place: object) -> None:
        self._channel = channel
        self._key = key
        self._nbytes = nbytes
        self._place = place
        self._number = digest(key)
        self._request: MPI.Request | None = None
        self.site: sites.Site = sites.caller() if CHECKED else None

    def __str__(self) -> str:
        call, *rest = self._key
        where = f" at {sites.spell(self.site)}" if self.site else ""
        return f"{call}({', '.join(map(_word, rest))}){where}"

    def try_to_meet(self, seconds: float) -> bool:
        """Begin, and look for so long whether all have come."""
        self._request = self._channel.begin(self._number, self._nbytes)
        end = time.perf_counter() + seconds
        spin = end if not self._channel.crowded else 0.0
        while not self._request.Test():
            now = time.perf_counter()
            if now > end:
                return False
            if now > spin:
                os.sched_yield()
        self._request = MPI.REQUEST_NULL
        return True

    def wait(self, limit: float) -> None:
        """Return when all ranks have come, having begun if need be.

        Raises CommunicationTimeoutError after `limit` seconds, and CommunicationError when it is
        certain that some will never come (with SHANTY_CHECK=1). The group is broken then.
        """
        if self._request is None:
            self._request = self._channel.begin(self._number, self._nbytes)
        request, start = self._request, time.monotonic()
        spin = 0.0 if self._channel.crowded else _SPIN
        inquiry: Inquiry | None = None
        while not request.Test():
            waited = time.monotonic() - start
            if waited < spin:
                continue
            if waited < _YIELD:
                os.sched_yield()
                continue
            if waited > limit:
                raise self._late(limit)
            time.sleep(min(_LONGEST, waited * _SLACK))
            self._channel.rollcall.answer()
            if not CHECKED:
                continue
            if inquiry is None:
                inquiry = Inquiry(self._channel.rollcall, self._channel.members)
            answers = inquiry.verdict()
            if answers is not None and not request.Test():
                raise self._hopeless(answers)
        self._request = MPI.REQUEST_NULL

    def compare(self, limit: float) -> None:
        """Raise MismatchError, on every rank, unless all ranks met for the same call; and
        CommunicationError when another rank gave the group up before this one came.
        """
        channel = self._channel
        warning = channel.warning(limit)
        if warning:
            channel.broken = CommunicationError(f"{self} on {self._place}: {warning}")
            raise channel.broken
        if channel.agree(self._number):
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

    def _here(self) -> str:
        return f"{self} on {str(self._place).partition(',')[0]}"

    def _late(self, limit: float) -> CommunicationTimeoutError:
        error = CommunicationTimeoutError(
            f"{self} on {self._place} was not complete after {limit:g} s: not all ranks came.\n"
            + self._channel.report(self._channel.members, self._here())
        )
        self._channel.give_up(error)
        return error

    def _hopeless(self, answers: dict[int, State]) -> CommunicationError:
        channel = self._channel
        error = CommunicationError(
            f"{self} on {self._place} can never complete: some of its ranks will not come.\n"
            + channel.lines(sorted({*channel.members, *answers}), answers, self._here())
        )
        channel.give_up(error)
        return error


def _hosts(comm: MPI.Intracomm) -> tuple[bool, bool]:
    """Whether some host has more of these ranks than cores; whether there are several hosts."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    linux = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
    facts = here.size > cores, here.size < comm.size
    here.Free()
    every = comm.allgather(facts)
    return any(crowded for crowded, _ in every), any(spread for _, spread in every)


def _words(memory: array[int]) -> tuple[object, int, MPI.Datatype]:
    address, length = memory.buffer_info()
    return MPI.buffer.fromaddress(address, 8 * length), length, MPI.INT64_T


def _word(part: object) -> str:
    return str(part).removeprefix("torch.")
