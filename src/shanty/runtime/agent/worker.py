"""One of the other hosts of a run, as the controller has it."""

from __future__ import annotations

import subprocess
from typing import List, Optional, Tuple

from shanty.runtime.agent.channel import Channel
from shanty.runtime.agent.heartbeat import FailureDetector
from shanty.runtime.plan import Node

_PERIOD = 30.0  # seconds; what a host said of its clock counts for the period and the next


class Worker:
    """The controller's end of one worker.

    `state` goes connecting → here → ready → gone, or lost.
    """

    def __init__(self, node: Node, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.node = node
        self.name = node.name
        self.process = process
        self.channel = Channel(process.stdout.fileno(), process.stdin.fileno())
        self.state = "connecting"
        self.silence = FailureDetector()
        self.clock = ClockOffset()
        self.ports: List[int] = []  # those that were free there

    @property
    def live(self) -> bool:
        """True while there is someone to talk to."""
        return self.state in ("connecting", "here", "ready")


class ClockOffset:
    """The offset of another host's monotonic clock to this one.

    A message tells when it was sent, by its host's clock. How much more this clock shows when it
    comes is the difference of both, and the time it took; the least of many is nearest to the
    difference (as in the clock filter of NTP, RFC 5905). Only messages of the last minute count,
    since clocks drift apart, and stand still while a machine does.
    """

    def __init__(self) -> None:
        self._begun: Optional[float] = None  # when the period did
        self._least: Tuple[float, float] = (0.0, 0.0)  # of this period, and of the one before

    def hear(self, sent: float, now: float) -> None:
        """A message came that was sent at `sent` by the host's clock."""
        behind, (least, before) = now - sent, self._least
        if self._begun is None or now - self._begun > 2 * _PERIOD:
            self._begun, self._least = now, (behind, behind)
        elif now - self._begun > _PERIOD:
            self._begun, self._least = now, (behind, least)
        else:
            self._least = min(least, behind), before

    def here(self, at: float) -> float:
        """This clock's time for `at` of a host that was heard."""
        return at + min(self._least)
