"""A word to another agent now and then, so that its silence means that it is gone."""

import signal
import threading
import time
from typing import Callable

BEAT = 1.0  # seconds between two words
_BUSY = 60.0  # seconds that an agent may be at one thing and still count as there


class Heartbeat:
    """Calls `say` every second, from a thread: what an agent is at may take longer than that.

    On a machine with more to do than it can, to look at every rank takes seconds. An agent that
    does not come round (see `turn`) for a minute says nothing any more.
    """

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._over = threading.Event()
        self._turned = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="beats", daemon=True)
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
