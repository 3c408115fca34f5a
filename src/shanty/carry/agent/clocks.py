"""When something happened on another host, by this host's clock."""

from typing import Dict, Optional, Tuple

_DRIFT = 1e-4  # seconds a second by which two clocks come apart at most
_STOOD_STILL = 2.0  # seconds a message takes no longer than, unless a machine stood still


class Clocks:
    """How far the monotonic clocks of hosts are behind this one.

    A message tells when it was sent, by its host's clock. How much more this clock shows when it
    comes is the difference of both, and the time it took; the least of many messages is nearest to
    the difference (F. Cristian, Probabilistic clock synchronization, 1989).
    """

    def __init__(self) -> None:
        self._behind: Dict[Optional[str], Tuple[float, float]] = {}  # seconds, and known since

    def hear(self, host: Optional[str], sent: float, now: float) -> None:
        """A message came that was sent at `sent` by the host's clock."""
        behind = now - sent
        if host in self._behind:
            least, since = self._behind[host]
            if behind - least < _STOOD_STILL:
                behind = min(behind, least + _DRIFT * (now - since))
        self._behind[host] = behind, now

    def here(self, host: Optional[str], at: float) -> float:
        """This clock's time for `at` of a host that was heard."""
        return at + self._behind[host][0]
