"""How long another process has not been heard, by one that was there to hear it."""

import time

_STEP = 1.0  # seconds between two looks that count at most


class FailureDetector:
    """The seconds since the last word of another, less those in which nobody could listen.

    A machine that stood still (suspended, or without a core to run on) hears from nobody, and
    learns of no one's end by that. So a gap between two looks counts for one look only.
    since: `time.monotonic()` at the last word.
    """

    def __init__(self) -> None:
        self.broken()

    def broken(self) -> None:
        """There was a word."""
        self.seconds = 0.0
        self.since = self._last = time.monotonic()

    def look(self, now: float) -> float:
        """Seconds of silence, by the clock `now`. To be called at least once a second."""
        self.seconds += min(now - self._last, _STEP)
        self._last = now
        return self.seconds
