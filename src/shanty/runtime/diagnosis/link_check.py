"""Checks, for the controller, which hosts of a run no longer reach each other.

Ranks that stand still in MPI may wait for bytes that the network no longer carries. So the node
agents try each other over the run's networks: a new connection, small packets, large packets. They
also report which connections of the ranks are stuck, since a firewall may have forgotten one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shanty.runtime import messages
from shanty.runtime.network_probe import CLOSED, pairs
from shanty.runtime.spec import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import Order
    from shanty.runtime.plan import Node

_LISTENING = 4.0  # seconds until all hosts have to listen
_TRYING = 14.0  # seconds for the tries
THOROUGH = (2.0, 3.0)  # seconds for an answer, and again: a host under load may only be slow
QUICK = (0.7,)
_SHOWN = 3  # pairs of hosts
_FIREWALL = "check the firewalls and the network between them; `shanty net` tries every pair"
_SAME_MTU = (
    "make sure that all interfaces, tunnels and switches on the way have the same MTU, and that "
    "firewalls let large packets and ICMP pass"
)
_IDLE = (
    "if the network was away it goes on within two minutes; else something on the way (a "
    "firewall, a NAT) has forgotten the connection: let it keep idle ones for longer"
)
Pair = tuple[str, str]  # from one host to another one, by name


class LinkFault(NamedTuple):
    """What does not pass between hosts, with a fix, and the host to blame."""

    what: str
    fix: str
    host: str


class Tried(NamedTuple):
    """The try of one host to reach another one: a `kind` of `network_probe.probe`, and why."""

    source: str
    target: str
    kind: str
    text: str = ""


class LinkCheck:
    """One check; `fault` is what it found once it is `over`.

    `tell_host` takes an order to the node agent of a host. `timeouts` are the seconds for an
    answer, one for each try.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        number: int,
        now: float,
        tell_host: Callable[[str, Order], None],
        timeouts: tuple[float, ...] = THOROUGH,
    ) -> None:
        self._tell_host = tell_host
        self._number = number
        self._timeouts = timeouts
        self._ends = {
            node.name: [address for _, address in node.interfaces]
            or [node.address] * _is_numbers(node.address)
            for node in nodes
        }
        self._owner = {address: name for name, ends in self._ends.items() for address in ends}
        self._tokens = {name: os.urandom(16).hex() for name in self._ends}
        self._ports: dict[str, Mapping[str, int]] = {}
        self._stuck: dict[Pair, int] = {}
        self._asked: dict[str, list[str]] = {}  # whom a host tries, in the order of its answer
        self._tried: list[Tried] = []
        self._until = now + _LISTENING
        self._trying = self.over = False
        self.fault: LinkFault | None = None
        for name, ends in self._ends.items():
            tell_host(name, messages.Listen(number, tuple(ends), self._tokens[name]))

    def explain(self, failure: Failure) -> Failure:
        """Return the failure with the fault between the hosts, if that explains it."""
        fault = self.fault
        if fault is None or (failure.why and failure.signal is None):
            return failure
        why = "; ".join(filter(None, [fault.what, failure.why]))
        return replace(failure, why=why, fix=fault.fix)

    def hear(self, host: str, message: messages.LinkPorts | messages.LinkResults) -> None:
        """Take the answer of a node agent."""
        if message.check != self._number or host not in self._ends:
            return
        if isinstance(message, messages.LinkPorts):
            self._ports[host] = message.ports
            for connection in message.stuck:
                if connection.remote in self._owner:
                    self._stuck[host, self._owner[connection.remote]] = connection.again
        elif host in self._asked:
            targets = self._asked.pop(host)
            self._tried += [Tried(host, t, *one) for t, one in zip(targets, message.tried)]

    def tick(self, now: float) -> None:
        """Do the next step when the previous one is done, or has taken too long."""
        if self.over:
            return
        late = now > self._until
        if not self._trying and (late or len(self._ports) == len(self._ends)):
            self._trying, self._until = True, now + _TRYING
            self._try()
        elif self._trying and (late or not self._asked):
            self.end()

    def end(self) -> None:
        """Decide by the answers so far."""
        self.over = True
        self.fault = judge(self._tried, self._stuck)
        for name in self._ends:
            self._tell_host(name, messages.StopListening(self._number))

    def _try(self) -> None:
        names = [name for name in self._ends if name in self._ports]
        targets: dict[str, list[messages.LinkTarget]] = {name: [] for name in names}
        for i, j in pairs(len(names)):
            source, target = names[i], names[j]
            for own, other in zip(self._ends[source], self._ends[target]):
                if other in self._ports[target]:
                    self._asked.setdefault(source, []).append(target)
                    port = self._ports[target][other]
                    targets[source].append(
                        messages.LinkTarget(other, port, self._tokens[target], own)
                    )
        for name in self._asked:
            order = messages.TryLinks(self._number, tuple(targets[name]), self._timeouts)
            self._tell_host(name, order)


def _is_numbers(address: str) -> bool:
    """False for a name, which would have to be resolved."""
    return ":" in address or address.replace(".", "").isdigit()


def judge(tried: Iterable[Tried], stuck: Mapping[Pair, int]) -> LinkFault | None:
    """Returns what does not pass, the most telling fault first; None where all is well.

    `stuck` has, for pairs of hosts, how often a rank's data was sent again without effect.
    """
    faults: dict[str, list[Tried]] = {}
    for one in tried:
        if one.text == CLOSED:
            continue  # a host that ends no longer listens
        if one.kind == "large-lost-back":
            one = one._replace(source=one.target, target=one.source, kind="large-lost")
        elif one.kind == "silent":
            one = one._replace(kind="no-answer")
        faults.setdefault(one.kind, []).append(one)
    passed = {(one.source, one.target) for one in faults.get("ok", ())}
    for kind in ("error", "wrong-host", "unreachable", "refused", "no-answer", "large-lost"):
        if kind in faults:
            return _fault(kind, faults[kind], passed)
    dead = sorted((pair for pair in stuck if pair in passed), key=lambda pair: -stuck[pair])
    if not dead:
        return None
    source, target = dead[0]
    what = (
        f"a connection from {source} to {target} is dead, though new ones pass: its data was sent "
        f"again {stuck[dead[0]]} times without effect"
    )
    return LinkFault(what, _IDLE, source)


def _fault(kind: str, tried: Sequence[Tried], passed: set[Pair]) -> LinkFault:
    """Returns the fault of one kind."""
    first = tried[0]
    source, target = first.source, first.target
    if kind == "error":
        return LinkFault(
            f"{source} cannot use its own address on the run's network: {first.text}",
            f"check that the interface is up and has its address: `ip addr` on {source}",
            source,
        )
    if kind == "wrong-host":
        return LinkFault(
            f"at the address of {target}, {source} meets another machine",
            "find out which machine has taken that address, and give it another one",
            target,
        )
    failed = {(one.source, one.target) for one in tried}
    host = common(failed)
    if kind == "large-lost":
        ways = _some([f"from {a} to {b}" for a, b in sorted(failed)])
        return LinkFault(
            f"large packets {ways} vanish, while small ones pass", _SAME_MTU, host or target
        )
    how = {
        "unreachable": _ROUTES.get(first.text, first.text) or "no route",
        "refused": "connections are refused, as by a firewall",
        "no-answer": "no answer, as if packets were dropped",
    }[kind]
    if len(failed) == 1 and (target, source) in passed:
        what = f"{source} gets no connection to {target} ({how}), while {target} gets one to it"
        return LinkFault(what, _FIREWALL, target)
    if host:
        who = f"{host} and {_some(sorted({name for pair in failed for name in pair} - {host}))}"
    else:
        both = sorted({tuple(sorted(pair)) for pair in failed})
        who = _some([f"{a} and {b}" for a, b in both], "; ")
    return LinkFault(f"{who} do not reach each other ({how})", _FIREWALL, host or target)


# The words for what a route of its own kind makes of a connection.
_ROUTES = {
    "Invalid argument": "a blackhole route: see ip route",
    "Permission denied": "a prohibiting route, or a firewall: see ip route",
}


def common(failed: set[Pair]) -> str:
    """Returns the only host that several pairs have in common; "" if there is none."""
    if not failed:
        return ""
    hosts = set.intersection(*(set(pair) for pair in failed))
    others = {name for pair in failed for name in pair} - hosts
    return min(hosts) if len(hosts) == 1 and len(others) > 1 else ""


def _some(words: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return separator.join(words[:_SHOWN]) + more
