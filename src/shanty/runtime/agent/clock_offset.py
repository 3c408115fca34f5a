"""When something happened on another host, by this host's clock."""

from typing import Dict, Tuple

_WHILE = 30.0  # seconds after which what a host said counts half, and twice that not any more


class ClockOffsets:
    """How far the monotonic clocks of other hosts are behind this one.

    A message tells when it was sent, by its host's clock. How much more this clock shows when it
    comes is the difference of both, and the time it took; the least of many is nearest to the
    difference (as in the clock filter of NTP, RFC 5905). Only of those of the last minute, since
    clocks drift apart, and stand still while a machine does.
    """

    def __init__(self) -> None:
        # host → when its while began, the least of that, and of the while before
        self._behind: Dict[str, Tuple[float, float, float]] = {}

    def hear(self, host: str, sent: float, now: float) -> None:
        """A message came that was sent at `sent` by the host's clock."""
        behind = now - sent
        begun, least, before = self._behind.get(host, (now, behind, behind))
        if now - begun > 2 * _WHILE:
            begun, least, before = now, behind, behind
        elif now - begun > _WHILE:
            begun, least, before = now, behind, least
        self._behind[host] = begun, min(least, behind), before

    def here(self, host: str, at: float) -> float:
        """This clock's time for `at` of a host that was heard."""
        _, least, before = self._behind[host]
        return at + min(least, before)
