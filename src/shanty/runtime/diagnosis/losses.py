"""The ranks that an elastic run has lost, and when that is the end of it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Dict, List, Optional, Set

from shanty.runtime.spec import HOST, Failure

_SAME = 3  # ranks that one exception may end before it counts as a bug of the script
UNAWARE = "it waits for a lost rank, or had not come to hvd.init() or ddp() yet"
# Words of the errors that a loss causes on the other ranks; none of them is the cause.
_CAUSED = ("MPI_ERR_PROC_FAILED", "MPI_ERR_REVOKED", "a rank was lost", UNAWARE)
_SCRIPTS = (
    "with --elastic a run goes on once its script trains in a function of hvd.elastic.run, or by "
    "shanty.torch.elastic.ddp(model); with --retries any run starts again where a host was lost"
)


class Losses:
    """The losses of one world, which goes on while `least` ranks are left."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.failures: List[Failure] = []  # in their order
        self.gone: Set[int] = set()  # ranks that were lost, and have not come back
        self.explained: Dict[int, Failure] = {}  # of ranks that are ended, or are on a lost host

    def add(self, rank: int, failure: Failure) -> None:
        """Note why a rank was lost."""
        self.gone.add(rank)
        self.failures.append(self.explained.pop(rank, failure))

    def verdict(self, expected: int) -> Optional[Failure]:
        """Return why a world of `expected` ranks has to end; None while it goes on."""
        left = expected - len(self.gone)
        own = [each for each in self.failures if not any(word in each.why for word in _CAUSED)]
        causes = Counter(each.why for each in own if each.cause != HOST and each.why)
        cause, many = causes.most_common(1)[0] if causes else ("", 0)
        if many >= _SAME:
            first = next(each for each in self.failures if each.why == cause)
            return replace(first, why=f"{cause}; {many} ranks have been lost to it, so it is a bug")
        if left >= self.least:
            return None
        last = self.failures[-len(self.gone) :]
        first = next((each for each in last if each in own), last[0])
        needed = f"--elastic={self.least} needs {self.least}"
        text = f"{left} of {expected} ranks are left, and {needed}"
        if len(own) < len(self.failures):
            text += "; the others could not go on without it"
            first = replace(first, fix=_SCRIPTS)
        return replace(first, why=f"{first.why}; {text}" if first.why else text)
