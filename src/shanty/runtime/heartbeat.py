"""Sends a message a second to show that an agent is alive, and counts the seconds without one."""

import signal
import threading
import time
from typing import Callable

from shanty.runtime import platform

SILENCE = 10.0  # seconds without a message from the controller after which its ranks are ended
BEAT = 1.0  # seconds between two messages
# In an elastic run, whose ranks go on without a silent host: its own ranks pause before, so that
# they do nothing any more when the others go on. Each of these is followed by at most a tick.
ELASTIC_SILENCE = 2.6  # seconds without a message from a host after which it counts as lost
ELASTIC_LEASE = 1.7  # seconds after its last message that has arrived there: its ranks stop
ELASTIC_BEAT = 0.25
# Seconds after its last contact with the lead host in which a command may start the next attempt on
# the other hosts.
STANDBY = 30.0
_BUSY = 60.0  # seconds that an agent may be at one thing and still count as there
_STEP = 1.0  # seconds between two looks that count at most
MOST = 60.0  # seconds of silence that are allowed on the busiest of machines
_LATENESS = 3.0  # times the longest silence of late that are allowed
_PERIOD = 60.0  # seconds; a long silence counts for the period and the next
_WORTH_A_LOOK = 3.0  # seconds of silence after which it is seen what the other does


class Heartbeat:
    """Calls `say` `every` so many seconds, from a thread: one turn of an agent may take longer.

    On an overloaded machine, a look at every rank takes seconds. An agent that does not come
    round (see `turn`) for a minute says nothing any more.
    """

    def __init__(self, say: Callable[[], None], every: float = BEAT) -> None:
        self._say = say
        self._every = every
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
            self._over.wait(self._every)


class FailureDetector:
    """Decides whether another agent is gone, by the seconds since its last message.

    Seconds count only while the other could speak and this process could listen. A machine that
    stood still (suspended, or without a core to run on) receives nothing, so a gap between two
    looks counts for one look only. An agent on this host, process `pid`, that has a thread which
    waits for a core or for a disk is held up by the machine, not frozen. Only the messages of an
    agent on another host are known: where they have come late, more silence is allowed.
    since: `time.monotonic()` at the last message. over: the other was found to be gone.
    """

    def __init__(self, pid: int = 0) -> None:
        self._pid = pid
        self.over = False
        self._begun = time.monotonic()  # of a period
        self._longest = self._longest_before = 0.0  # silences of this period, and of the last one
        self.seconds = self._held_up = 0.0
        self.since = self._last = self._begun

    def heard(self) -> None:
        """There was a message."""
        self._longest = max(self._longest, self.seconds + self._held_up)
        self.seconds = self._held_up = 0.0
        self.since = self._last = time.monotonic()
        if self.since > self._begun + _PERIOD:
            self._begun, self._longest_before, self._longest = self.since, self._longest, 0.0

    def look(self, now: float) -> float:
        """Seconds of silence, by the clock `now`. To be called at least once a second."""
        step = min(now - self._last, _STEP)
        self._last = now
        if self._pid and self.seconds + self._held_up > _WORTH_A_LOOK and self._is_held_up():
            self._held_up += step
        else:
            self.seconds += step
        return self.seconds

    def patience(self, seconds: float) -> float:
        """Returns how much silence is allowed where it is `seconds` on an idle machine."""
        late = max(self._longest, self._longest_before)
        return max(seconds, min(_LATENESS * late, MOST))

    def is_over(self, now: float, seconds: float) -> bool:
        """Looks; returns True when the silence is longer than that allows."""
        silence, most = self.look(now), max(seconds, MOST)
        self.over = silence > self.patience(seconds) or silence + self._held_up > most
        return self.over

    def _is_held_up(self) -> bool:
        return any(state in "RD" for state in platform.thread_states(self._pid))
