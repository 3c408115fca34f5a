"""The ranks that an elastic run has lost, and when that is the end of it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Dict, List, Optional, Set

from shanty.runtime.spec import HOST, Failure

_SAME = 3  # ranks that one exception may end before it counts as a bug of the script


class Losses:
    """The losses of one world, which goes on while `least` ranks are left."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.failures: List[Failure] = []  # in their order
        self._codes: List[Optional[int]] = []
        self.gone: Set[int] = set()  # ranks that were lost, and have not come back
        self.explained: Dict[int, Failure] = {}  # of ranks that are ended, or are on a lost host

    def add(self, rank: int, failure: Failure, code: Optional[int]) -> None:
        """Note why a rank was lost, and the exit code that it ended with."""
        self.gone.add(rank)
        self.failures.append(self.explained.pop(rank, failure))
        self._codes.append(code)

    def code_of(self, verdict: Failure) -> Optional[int]:
        """Return the exit code of the rank whose loss a verdict is; another may be in its place."""
        known = {(each.rank, each.what): code for each, code in zip(self.failures, self._codes)}
        return known.get((verdict.rank, verdict.what))

    def verdict(self, expected: int) -> Optional[Failure]:
        """Return why a world of `expected` ranks has to end; None while it goes on."""
        left = expected - len(self.gone)
        causes = Counter(each.why for each in self.failures if each.cause != HOST and each.why)
        cause, many = causes.most_common(1)[0] if causes else ("", 0)
        if many >= _SAME:
            first = next(each for each in self.failures if each.why == cause)
            return replace(first, why=f"{cause}; {many} ranks have been lost to it, so it is a bug")
        if left >= self.least:
            return None
        first, needed = self.failures[-len(self.gone)], f"--elastic={self.least} needs {self.least}"
        text = f"{left} of {expected} ranks are left, and {needed}"
        return replace(first, why=f"{first.why}; {text}" if first.why else text)
