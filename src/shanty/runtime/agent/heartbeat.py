"""Tells that an agent is there by a word a second, and counts the seconds without one."""

import signal
import threading
import time
from typing import Callable

BEAT = 1.0  # seconds between two words
_BUSY = 60.0  # seconds that an agent may be at one thing and still count as there
_STEP = 1.0  # seconds between two looks that count at most


class Heartbeat:
    """Calls `say` every second, from a thread: one turn of an agent may take longer than that.

    On an overloaded machine, a look at every rank takes seconds. An agent that does not come
    round (see `turn`) for a minute says nothing any more.
    """

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._over = threading.Event()
        self._turned = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()  # signals are for the main thread
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def turn(self) -> None:
        """The agent has come round."""
        self._turned = time.monotonic()

    def end(self) -> None:
        """Say no more."""
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.is_set():
            if time.monotonic() < self._turned + _BUSY:
                self._say()
            self._over.wait(BEAT)


class FailureDetector:
    """Counts the seconds since another's last word, less those in which nobody could listen.

    A machine that stood still (suspended, or without a core to run on) hears from nobody, and
    learns of no one's end by that. So a gap between two looks counts for one look only.
    since: `time.monotonic()` at the last word.
    """

    def __init__(self) -> None:
        self.heard()

    def heard(self) -> None:
        """There was a word."""
        self.seconds = 0.0
        self.since = self._last = time.monotonic()

    def look(self, now: float) -> float:
        """Seconds of silence, by the clock `now`. To be called at least once a second."""
        self.seconds += min(now - self._last, _STEP)
        self._last = now
        return self.seconds
