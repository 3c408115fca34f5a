"""Explains why ranks that wait for each other in a framework's rendezvous do not meet. Pure.

A rank reports that it has entered one, and what it looks for there (`rank/meeting.py`).
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

from shanty.runtime.diagnosis.rank_names import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import Report

_TIMED_OUT = re.compile("(?i)time(d )?out")  # as stores report it

Value = TypeVar("Value", int, str)


class Meeting(NamedTuple):
    """A rank's wait in a rendezvous, the call `what`, from `since` on by the controller's clock.

    It is process `place` of `size`, -1 and 0 where that is not known, and meets the others at
    `address`; `origin` is where that was set, and `ours` the address that shanty had set, both ""
    where the address is shanty's. `keys` are those that it waits for in a store of torch's
    ("'a', 'b'"); `serves`: whether it serves the store itself.
    """

    what: str
    since: float
    size: int = 0
    place: int = -1
    address: str = ""
    origin: str = ""
    ours: str = ""
    keys: str = ""
    serves: Optional[bool] = None

    @property
    def call(self) -> str:
        """What it is in: "TCPStore.get for the key 'a'"."""
        return f"{self.what} for the key{_s(self.keys)} {self.keys}" if self.keys else self.what

    @property
    def awaits(self) -> str:
        """For how many ranks it waits: " for 4 ranks"; "" where that is not known."""
        return f" for {self.size} rank{'s' * (self.size > 1)}" if self.size else ""

    def explains(self, why: str) -> bool:
        """Whether the rank may have failed with this error because of it.

        A script may look for a key for a while, and fail later for another reason.
        """
        return not self.keys or bool(_TIMED_OUT.search(why))


def meeting_of(report: Report, now: float) -> Meeting:
    """Return the rendezvous that a rank reports at this time of the controller's clock."""
    size, place, serves = report.whole("size"), report.whole("place"), report.values.get("serves")
    texts = {name: report.text(name) for name in ("what", "address", "origin", "ours", "keys")}
    return Meeting(
        since=now,
        size=size or 0,
        place=-1 if place is None else place,
        serves=None if serves is None else bool(serves),
        **texts,
    )


def explain(meetings: Mapping[int, Meeting], ranks: int) -> Optional[Tuple[str, str]]:
    """Return what keeps these ranks of a run of `ranks` from meeting, and a fix; None if unknown.

    `meetings` are those of ranks that are in the same call at the same time.
    """
    too_many = {rank: each for rank, each in meetings.items() if each.size > ranks}
    if too_many and len({each.what for each in meetings.values()}) > 1:
        meetings = too_many  # they explain what the others wait for
    numbers = sorted(meetings)
    calls = _groups({rank: each.call for rank, each in meetings.items()})
    if calls and all(each.keys for each in meetings.values()):
        which = ", ".join(f"{named(who)} {_wait(who)} in {call}" for call, who in calls.items())
        one = len(calls) == 1 and not _s(meetings[numbers[0]].keys)
        return f"{which}, and no rank has set {'it' if one else 'them'}", NOT_SET
    if not numbers or len({each.what for each in meetings.values()}) > 1:
        return None
    what, first = meetings[numbers[0]].what, meetings[numbers[0]]
    serving = [rank for rank in numbers if meetings[rank].serves]
    if len(numbers) == ranks and not serving and first.serves is False:
        at = f"{what} at {first.address}"
        return f"{named(numbers)} wait in {at}, and none of them serves it", _ONE_SERVER
    if len(serving) > 1 and len({meetings[rank].address for rank in serving}) == 1:
        return f"{named(serving)} {_both(serving)} pass is_master=True to {what}", _ONE_SERVER
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
            return f"{named(who)} {_both(who)} claim to be rank {place} in {what}", _FROM_VARIABLES
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
    "leave address and store to shanty, which sets them for every rank, or give all ranks an "
    "address and a free port of the host of rank 0"
)
_ONE_SERVER = "pass is_master=True to TCPStore in one rank only: is_master=(rank == 0)"
NOT_SET = (
    "let a rank set the key before the others need it, by the same name and in the same store: "
    "the same address or file, and the same prefix"
)


def _s(keys: str) -> str:
    return "s" if "', '" in keys else ""


def _both(ranks: List[int]) -> str:
    return "both" if len(ranks) == 2 else "all"


def _wait(ranks: List[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _groups(values: Mapping[int, Value]) -> Dict[Value, List[int]]:
    """Return the ranks that have the same value, by the value."""
    found: Dict[Value, List[int]] = {}
    for rank in sorted(values):
        found.setdefault(values[rank], []).append(rank)
    return found
