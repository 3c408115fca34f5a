"""The stall inspector: asks about requests that wait long, warns, and gives up hopeless ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.handshake import Channel
from shanty.collectives.response_cache import RequestList, ResponseList
from shanty.collectives.settings import Settings

_SOON = 1.0  # seconds after which a rank asks the others for the first time
_CERTAIN = 2.0  # seconds that all ranks must have waited before that counts as a deadlock
_SHOWN = 10  # names in a message


class StallInspector:
    """The watch over one process set's requests.

    ranks: its members, as ranks of Horovod's world.
    """

    def __init__(self, rank: int, ranks: Sequence[int], settings: Settings) -> None:
        self._name = settings.name
        self._rank = rank
        self._ranks = ranks
        self._warning = settings.stall_warning if settings.stall_check else float("inf")
        self._shutdown = settings.stall_shutdown if settings.stall_check else 0.0
        self._next = self._next_wait = _SOON
        self._next_warning = self._next_silence = self._warning

    def due(self, age: float, waited: float = 0.0) -> bool:
        """Return true when it is time to ask for the lists of all ranks: after 1, 2, 4, … seconds.

        age: seconds that the oldest request has waited. waited: those that the main thread has,
        for one request. An old request that nothing waits for must not delay that check.
        """
        if waited < _SOON:
            self._next_wait = _SOON
        elif waited >= self._next_wait:
            self._next_wait = min(2 * waited, waited + self._warning)
            return True
        if age < _SOON:
            self._next, self._next_warning = _SOON, self._warning
        elif age >= self._next:
            later = age * 2
            ahead = [each for each in (self._warning, self._shutdown) if age < each < later]
            self._next = min([later, *ahead, age + self._warning])
            return True
        return False

    def deadlock(
        self, agreed: ResponseList, lists: Sequence[RequestList]
    ) -> HorovodInternalError | None:
        """Return the error where all ranks wait, and for nothing that can come; the same on all."""
        waits = all(each.awaits and each.waited >= _CERTAIN for each in lists)
        if not waits or agreed.ready or not agreed.missing:
            return None
        lines = [
            f"  rank {rank} waits for {each.awaits}{_at(each.place)}"
            for rank, each in zip(self._ranks, lists, strict=True)
        ]
        return HorovodInternalError(
            "this can never complete, since all ranks wait for each other:\n" + "\n".join(lines)
        )

    def verdict(
        self, agreed: ResponseList, lists: Sequence[RequestList]
    ) -> HorovodInternalError | None:
        """Warn on the first rank where it is time; returns the error if it is over, on all."""
        waited = max(each.oldest for each in lists)
        if not agreed.missing:
            return None
        if self._shutdown and waited >= self._shutdown:
            text = self._missing(agreed, lists)
            return HorovodInternalError(
                f"given up after {self._shutdown:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS), since "
                f"some ranks did not submit what others wait for:\n{text}"
            )
        if waited >= self._next_warning:
            self._next_warning = waited + self._warning
            if self._rank == 0:
                print(
                    f"{self._name}: stalled: some ranks have waited for {waited:.0f} s for what "
                    f"others have not submitted:\n{self._missing(agreed, lists)}",
                    file=sys.stderr,
                    flush=True,
                )
        return None

    def look(self, at: Channel, silence: float, wait: float) -> None:
        """Look while others take no part in a cycle at all, as they would every second in any case.

        silence: seconds so far. wait: seconds that the oldest request has waited.
        Raises HorovodInternalError at the time to shut down.
        """
        if silence < 5 or not wait:
            self._next_silence = self._warning
            return
        if self._shutdown and wait >= self._shutdown:
            raise HorovodInternalError(
                f"given up after {self._shutdown:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS):\n"
                + at.report(at.members, "what the others do not submit")
            )
        if wait >= self._next_silence:
            self._next_silence = wait + self._warning
            print(
                f"{self._name}: stalled: for {silence:.0f} s not all ranks have answered:\n"
                + at.report(at.members, "their answer"),
                file=sys.stderr,
                flush=True,
            )

    def _missing(self, agreed: ResponseList, lists: Sequence[RequestList]) -> str:
        by_rank: dict[int, list[str]] = {}
        for (name, kind), ranks in agreed.missing.items():
            for rank in ranks:
                by_rank.setdefault(rank, []).append(f"{kind}.{name}")
        lines = []
        for rank, names in sorted(by_rank.items()):
            shown = ", ".join(names[:_SHOWN]) + (
                f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
            )
            place, other = _at(lists[rank].place), lists[rank].awaits
            waits = f", which waits for {other}," * bool(other)
            lines.append(f"  rank {self._ranks[rank]}{place}{waits} has not submitted {shown}")
        return "\n".join(lines)


def gone(left: Sequence[int], ranks: Sequence[int], own: bool) -> HorovodInternalError:
    """Return the error after these ranks of a set have left it. ranks: of Horovod's world; own:
    whether this one is among them.
    """
    if own:
        return HorovodInternalError("Horovod has been shut down on this rank.")
    who = ", ".join(str(ranks[each]) for each in left)
    plural = "s" if len(left) > 1 else ""
    return HorovodInternalError(
        f"rank{plural} {who} of the world called hvd.shutdown(), or ended the script: "
        "nothing that needs all ranks can be done any more."
    )


def _at(place: str) -> str:
    return f" (at {place})" if place else ""
