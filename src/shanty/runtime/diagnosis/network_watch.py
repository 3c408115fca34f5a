"""Finds, for the controller, what the kernels of the hosts count as trouble of the network.

The node agents' samples say how many TCP segments a host sent and sent again, and whether the MTU
of a link is another one than at the start of the run. A run may go on in spite of it, slowly.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.diagnosis.link_check import LinkFault, common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.plan import Node

LEAST = 30  # segments sent again between two samples: a dead connection has fewer, it waits longer
_MUCH, _SOME = 0.15, 0.05  # the part of all segments that is a trouble at once, or if it lasts
_LOSS_FIX = (
    "check the cables, switches, firewalls and traffic limits (`tc qdisc`) on the way; `shanty "
    "net` measures every pair of hosts"
)


class NetworkWatch:
    """What is wrong now, by the newest samples; `fault` is None while all is well."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._owner = {node.address: node.name for node in nodes}
        self._owner.update((end, node.name) for node in nodes for _, end in node.interfaces)
        self._peer: Dict[str, str] = {}  # the host to which most was sent again
        self._lost: Dict[str, List[Tuple[float, float]]] = {}  # the last two: part, bytes a second
        self._mtus: Dict[str, Mapping[str, Sequence[int]]] = {}
        self._kind: object = None
        self.fault: Optional[LinkFault] = None

    def hear(self, host: str, sample: Mapping[str, Any]) -> bool:
        """Take a sample of a host; True if the fault is of another kind now."""
        sent, again = sample.get("segments", 0), sample.get("resent", 0)
        part = again / (sent + again) if again >= LEAST else 0.0
        self._peer[host] = self._owner.get(sample.get("resent_to", ""), "")
        self._lost[host] = [*self._lost.get(host, [])[-1:], (part, float(sample.get("send", 0)))]
        self._mtus[host] = sample.get("mtu", {})
        before, (self._kind, self.fault) = self._kind, self._judge()
        return self._kind != before

    def _judge(self) -> Tuple[object, Optional[LinkFault]]:
        for host, links in self._mtus.items():
            for name, (before, now) in links.items():
                what = f"{name} on {host} has MTU {now}, was {before} when the run began"
                fix = f"set it back: ip link set {name} mtu {before} on {host}"
                return (host, name, now), LinkFault(what, fix, host)
        losing = sorted(host for host, parts in self._lost.items() if _loses(parts))
        if not losing:
            return None, None
        worst = max(losing, key=lambda host: self._lost[host][-1][0])
        part, rate = self._lost[worst][-1]
        peer = self._peer[worst]
        way = f"packets from {worst} to {peer} are lost" if peer else f"{worst} loses packets"
        what = f"{way}: {part:.0%} of its TCP segments were sent again, at {rate / 1024:.0f} KiB/s"
        host = common({(host, self._peer[host]) for host in losing if self._peer[host]})
        return "loss", LinkFault(what, _LOSS_FIX, host or peer or worst)


def _loses(parts: Sequence[Tuple[float, float]]) -> bool:
    return parts[-1][0] >= _MUCH or (len(parts) > 1 and min(part for part, _ in parts) >= _SOME)
