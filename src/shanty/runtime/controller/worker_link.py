"""The controller's side of one worker."""

from __future__ import annotations

import os
import subprocess
import time
from enum import Enum
from typing import Optional, Tuple

from shanty.runtime.channel import Channel
from shanty.runtime.heartbeat import FailureDetector
from shanty.runtime.plan import Node

_PERIOD = 30.0  # seconds; the times in a host's messages count for the period and the next


class WorkerState(Enum):
    """What is known of a worker; each state but the last two leads to the next one, or to LOST."""

    CONNECTING = "connecting"
    HERE = "here"  # its node agent is
    READY = "ready"  # for ranks
    GONE = "gone"
    LOST = "lost"


class WorkerLink:
    """The controller's end of one worker."""

    def __init__(self, node: Node, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.node = node
        self.name = node.name
        self.process = process
        with process.stdin, process.stdout:
            self.channel = Channel(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        self.state = WorkerState.CONNECTING
        self.silence = FailureDetector()
        self.clock = ClockOffset()
        self.last_sent = time.monotonic()  # when what came from it last was sent, by this clock
        self.ports: Tuple[int, ...] = ()  # those that were free there

    @property
    def live(self) -> bool:
        """True while a node agent is there."""
        return self.state not in (WorkerState.GONE, WorkerState.LOST)


class ClockOffset:
    """The offset of another host's monotonic clock to this one.

    A message carries the time at which it was sent, by its host's clock. On arrival this clock is
    ahead of that time by the offset plus the time of the transfer; the least of many such values is
    nearest to the offset (as in the clock filter of NTP, RFC 5905). Only messages of the last
    minute count, since clocks drift, and stand still while a machine is suspended.
    """

    def __init__(self) -> None:
        self._begun: Optional[float] = None  # when the period did
        self._least: Tuple[float, float] = (0.0, 0.0)  # of this period, and of the one before

    def hear(self, sent: float, now: float) -> None:
        """Take the arrival of a message that was sent at `sent` by the host's clock."""
        behind, (least, before) = now - sent, self._least
        if self._begun is None or now - self._begun > 2 * _PERIOD:
            self._begun, self._least = now, (behind, behind)
        elif now - self._begun > _PERIOD:
            self._begun, self._least = now, (behind, least)
        else:
            self._least = min(least, behind), before

    def here(self, at: float) -> float:
        """Return this clock's time for `at` of the host's clock."""
        return at + min(self._least)
