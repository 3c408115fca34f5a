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
    """The losses of one world of `size` ranks, which goes on while `least` of them are left.

    `spares` are the ranks beside them that wait for the places of lost ones.
    """

    def __init__(self, least: int, size: int, spares: Set[int]) -> None:
        self.least = least
        self.size = size
        self._spares = spares
        self.fresh: Set[int] = set()  # that have one, and have not got the training's state yet
        self.failures: List[Failure] = []  # in their order
        self._codes: List[Optional[int]] = []
        self.gone: Set[int] = set()  # ranks that were lost, and have not come back
        self.explained: Dict[int, Failure] = {}  # of ranks that are ended, or are on a lost host

    @property
    def out(self) -> Set[int]:
        """The ranks that do not train."""
        return self.gone | self.fresh

    def add(self, rank: int, failure: Failure, code: Optional[int]) -> None:
        """Note why a rank was lost, and the exit code that it ended with."""
        failure = self.explained.pop(rank, failure)
        if rank in self._spares:
            self._spares.discard(rank)
            what = failure.what.replace(f"rank {rank} ", f"rank {rank} (spare) ", 1)
            failure = replace(failure, what=what)
        self.gone.add(rank)
        self.fresh.discard(rank)
        self.failures.append(failure)
        self._codes.append(code)

    def code_of(self, verdict: Failure) -> Optional[int]:
        """Return the exit code of the rank whose loss a verdict is; another may be in its place."""
        known = {(each.rank, each.what): code for each, code in zip(self.failures, self._codes)}
        return known.get((verdict.rank, verdict.what))

    def verdict(self, expected: int) -> Optional[Failure]:
        """Return why a world of `expected` ranks and spares has to end; None while it goes on."""
        left = min(self.size, expected - len(self.gone))
        own = [each for each in self.failures if not any(word in each.why for word in _CAUSED)]
        causes = Counter(each.why for each in own if each.cause != HOST and each.why)
        cause, many = causes.most_common(1)[0] if causes else ("", 0)
        if many >= _SAME:
            first = next(each for each in self.failures if each.why == cause)
            return replace(first, why=f"{cause}; {many} ranks have been lost to it, so it is a bug")
        new = self._spares | self.fresh
        if left and self.gone and len(self.gone | new) == expected:
            first, text = self.failures[-1], "no rank is left that has the state of the training"
        elif left < self.least:
            last = self.failures[left - self.size :]
            first = next((each for each in last if each in own), last[0])
            needed = f"--elastic={self.least} needs {self.least}"
            text = f"{left} of {self.size} ranks are left, and {needed}"
            if len(own) < len(self.failures):
                text += "; the others could not go on without it"
                first = replace(first, fix=_SCRIPTS)
        else:
            return None
        return replace(first, why=f"{first.why}; {text}" if first.why else text)
