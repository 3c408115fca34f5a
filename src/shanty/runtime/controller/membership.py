"""Who goes on with whom in an elastic run. Pure: it gets the ranks' questions and the time.

After each change the ranks that have found each other ask whether they may go on together. They may
where they are all that live. Where they are not, one group may, the largest, once the others have
had time to ask as well; who is not in it has to end. So no two groups ever go on apart.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, FrozenSet, List, NamedTuple, Optional

HOLD = 2.0  # seconds for those outside of a group to ask, or to be found to be gone
HOLD_FEW = 5.0  # the same where those are the most

Group = FrozenSet[int]


class Confirmed(NamedTuple):
    """The group that goes on, and the ranks that live and are not in it."""

    group: Group
    others: Group


class Membership:
    """The questions that have not been answered yet."""

    def __init__(self) -> None:
        self._asked: Dict[int, Group] = {}
        self._since: Dict[Group, float] = {}  # when the last of the group asked

    def ask(self, rank: int, group: Group) -> None:
        """Note that a rank asks whether it may go on with these, itself among them."""
        self._asked[rank] = group
        self._since.pop(group, None)

    def decide(self, living: AbstractSet[int], now: float) -> Optional[Confirmed]:
        """Return the group that may go on now that these ranks live; None while that is open."""
        groups = {group for rank, group in self._asked.items() if rank in living}
        whole: List[Group] = [
            group
            for group in groups
            if all(self._asked.get(rank) == group for rank in group & living)
        ]
        for group in whole:
            since = self._since.setdefault(group, now)
            hold = HOLD if 2 * len(group & living) >= len(living) else HOLD_FEW
            if not living - group or now > since + hold:
                best = max(whole, key=lambda each: (len(each & living), -min(each)))
                self._asked.clear()
                self._since.clear()
                return Confirmed(best, frozenset(living - best))
        return None
