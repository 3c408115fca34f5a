"""Explains why ranks that wait for each other in a framework's rendezvous do not meet. Pure.

A rank reports that it has entered one, and what it looks for there (`rank/meeting.py`).
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

from shanty.runtime.diagnosis.rank_names import named

Value = TypeVar("Value", int, str)


class Meeting(NamedTuple):
    """A rank's wait in a rendezvous, the call `what`, from `since` on by the controller's clock.

    It is process `place` of `size`, -1 and 0 where that is not known, and meets the others at
    `address`; `origin` is where that was set, and `ours` the address that shanty had set, both ""
    where the address is shanty's.
    """

    what: str
    since: float
    size: int = 0
    place: int = -1
    address: str = ""
    origin: str = ""
    ours: str = ""

    @property
    def awaits(self) -> str:
        """For how many ranks it waits: " for 4 ranks"; "" where that is not known."""
        return f" for {self.size} rank{'s' * (self.size > 1)}" if self.size else ""


def explain(meetings: Mapping[int, Meeting], ranks: int) -> Optional[Tuple[str, str]]:
    """Return what keeps these ranks of a run of `ranks` from meeting, and a fix; None if unknown.

    `meetings` are those of ranks that are in the same call at the same time.
    """
    numbers = sorted(meetings)
    if not numbers or len({each.what for each in meetings.values()}) > 1:
        return None
    what, first = meetings[numbers[0]].what, meetings[numbers[0]]
    sizes = _groups({rank: each.size for rank, each in meetings.items() if each.size})
    largest = max(sizes, default=0)
    if largest > ranks:
        who = [rank for rank in numbers if meetings[rank].size in (0, largest)]
        return (
            f"{named(who)} {_wait(who)} in {what} for {largest} ranks, and this run has {ranks}",
            f"take the number of ranks from WORLD_SIZE, or start that many: -n {largest}",
        )
    if len(sizes) > 1:
        which = ", ".join(f"{named(who)} {_wait(who)} for {size}" for size, who in sizes.items())
        return f"ranks wait in {what} for different numbers of ranks: {which}", _FROM_VARIABLES
    places = _groups({rank: each.place for rank, each in meetings.items() if each.place >= 0})
    for place, who in places.items():
        if len(who) > 1 and len({meetings[rank].address for rank in who}) == 1:
            both = "both" if len(who) == 2 else "all"
            return f"{named(who)} {both} claim to be rank {place} in {what}", _FROM_VARIABLES
    addresses = _groups({rank: each.address for rank, each in meetings.items() if each.address})
    if len(addresses) > 1:
        which = ", ".join(f"{named(who)} at {address}" for address, who in addresses.items())
        return f"ranks look for each other in {what} at different addresses: {which}", _ONE_ADDRESS
    if first.origin:
        ours = f"; shanty had set {first.ours}" if first.ours else ""
        return (
            f"{named(numbers)} {_wait(numbers)} in {what} at {first.address}, which comes from "
            f"{first.origin}{ours}",
            _ONE_ADDRESS,
        )
    return None


_FROM_VARIABLES = (
    "take rank and number of ranks from RANK and WORLD_SIZE, which are set for every rank, instead "
    "of writing them into the script"
)
_ONE_ADDRESS = (
    "leave the address to shanty, which sets it for every rank, or give all ranks an address and a "
    "free port of the host of rank 0"
)


def _wait(ranks: List[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _groups(values: Mapping[int, Value]) -> Dict[Value, List[int]]:
    """Return the ranks that have the same value, by the value."""
    found: Dict[Value, List[int]] = {}
    for rank in sorted(values):
        found.setdefault(values[rank], []).append(rank)
    return found
