"""Passes the controller's words on to the ranks of an elastic run; lets ranks stand still.

A rank reads them from a FIFO (`RunDir.rank_word`) once it takes part in the training; until then
they are kept here.

    lost 2,3        these ranks are lost
    confirmed 2,3   go on without these, as asked (the report "membership")
    unstarted 2     the rank that was started again has ended before it joined
    over            the training has ended: a spare may end as well
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Callable, Dict, Iterable, List, Set

from shanty.runtime.rundir import RunDir

PATIENCE = 10.0  # seconds for a rank to listen that others wait for


class RankWords:
    """What the ranks of one host do not know yet, and which of its processes are stopped."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._untold: Dict[int, List[str]] = {}
        self._since: Dict[int, float] = {}  # when there was something to tell them first
        self._stopped: Set[int] = set()

    def add(self, ranks: Iterable[int], word: str) -> None:
        """Tell these ranks, now or as soon as they listen."""
        for rank in ranks:
            self._untold.setdefault(rank, []).append(word)
            self._since.setdefault(rank, time.monotonic())
        self.tick()

    def tick(self) -> None:
        """Tell the ranks that listen by now."""
        for rank, words in list(self._untold.items()):
            with contextlib.suppress(OSError):  # it does not listen yet, or has ended
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                fifo = os.open(self._run.rank_word(rank), flags)
                try:
                    os.write(fifo, "".join(f"{word}\n" for word in words).encode())
                finally:
                    os.close(fifo)
                del self._untold[rank]
                self._since.pop(rank, None)

    def deaf(self, now: float) -> List[int]:
        """Return the ranks that have not listened for long, each once: no elastic training."""
        found = [rank for rank, since in self._since.items() if now > since + PATIENCE]
        for rank in found:
            del self._since[rank]
        return found

    def pause(self, find: Callable[[], List[int]], *, pause: bool) -> None:
        """Stop the processes that `find` finds, or let them run again.

        They stand still where the controller may have given up this host: the others go on then.
        So do the launcher's daemons, which would continue ranks to end them.
        """
        if pause and not self._stopped:
            self._stopped = {pid for pid in find() if _signalled(pid, signal.SIGSTOP)}
        elif not pause and self._stopped:
            for pid in self._stopped:
                _signalled(pid, signal.SIGCONT)
            self._stopped.clear()


def _signalled(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
