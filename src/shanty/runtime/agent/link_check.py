"""Checks, for the controller, whether the hosts of a run still reach each other, and says who not.

Ranks that stand still in MPI may wait for bytes that the network no longer carries. So the node
agents try each other over the run's networks: a new connection, small packets, large packets. They
also tell which of the ranks' own connections are stuck, since a firewall may have forgotten one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from shanty.runtime.agent.run_control import RunControl
from shanty.runtime.network_probe import CLOSED, TRY_BYTES, pairs
from shanty.runtime.spec import Failure

_LISTENING = 4.0  # seconds until all hosts have to listen
_TRYING = 14.0  # seconds for the tries
THOROUGH = (2.0, 3.0)  # seconds for an answer, and again: a host under load may only be slow
QUICK = (0.7,)
_SHOWN = 3  # pairs of hosts
_FIREWALL = "see to the firewalls and the network between them; `shanty net` tries every pair"
_SAME_MTU = (
    "see that all interfaces, tunnels and switches on the way have the same MTU, and that "
    "firewalls let large packets and ICMP pass"
)
_IDLE = (
    "if the network was away it goes on within two minutes; else something on the way (a "
    "firewall, a NAT) has forgotten the connection: let it keep idle ones for longer"
)
Pair = Tuple[str, str]  # from one host to another one, by name


class LinkFault(NamedTuple):
    """What does not pass between hosts: in words, with a fix, and the host that it is about."""

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

    `timeouts` are the seconds for an answer, one for each try.
    """

    def __init__(
        self,
        control: RunControl,
        number: int,
        now: float,
        timeouts: Tuple[float, ...] = THOROUGH,
    ) -> None:
        self._control = control
        self._number = number
        self._timeouts = timeouts
        nodes = control.plan.attempt.nodes
        self._ends = {
            node.name: [address for _, address in node.interfaces]
            or [node.address] * _is_numbers(node.address)
            for node in nodes
        }
        self._owner = {address: name for name, ends in self._ends.items() for address in ends}
        self._tokens = {name: os.urandom(16).hex() for name in self._ends}
        self._ports: Dict[str, Mapping[str, int]] = {}
        self._stuck: Dict[Pair, int] = {}
        self._asked: Dict[str, List[str]] = {}  # whom a host tries, in the order of its answer
        self._tried: List[Tried] = []
        self._until = now + _LISTENING
        self._trying = self.over = False
        self.fault: Optional[LinkFault] = None
        self.moved: Dict[str, int] = dict.fromkeys(self._ends, 0)  # bytes each way, by host
        for name, ends in self._ends.items():
            self._tell(name, listen=ends, token=self._tokens[name])

    def explain(self, failure: Failure) -> Failure:
        """The failure with what does not pass between the hosts, if that explains it."""
        fault = self.fault
        if fault is None or (failure.why and failure.signal is None):
            return failure
        why = "; ".join(filter(None, [fault.what, failure.why]))
        return replace(failure, why=why, fix=fault.fix)

    def _tell(self, host: str, **order: Any) -> None:
        self._control.tell_host(host, links={"check": self._number, **order})

    def hear(self, host: str, message: Mapping[str, Any]) -> None:
        """Take what a node agent says."""
        if message["check"] != self._number or host not in self._ends:
            return
        if "ports" in message:
            self._ports[host] = message["ports"]
            for _, remote, again in message["stuck"]:
                if remote in self._owner:
                    self._stuck[host, self._owner[remote]] = again
        elif host in self._asked:
            targets = self._asked.pop(host)
            self._tried += [Tried(host, t, *one) for t, one in zip(targets, message["tried"])]

    def tick(self, now: float) -> None:
        """Do the next step when the one before is done, or has taken too long."""
        if self.over:
            return
        late = now > self._until
        if not self._trying and (late or len(self._ports) == len(self._ends)):
            self._trying, self._until = True, now + _TRYING
            self._try()
        elif self._trying and (late or not self._asked):
            self.end()

    def end(self) -> None:
        """Judge by what has come in."""
        self.over = True
        self.fault = judge(self._tried, self._stuck)
        for name in self._ends:
            self._tell(name)

    def _try(self) -> None:
        names = [name for name in self._ends if name in self._ports]
        targets: Dict[str, List[Dict[str, Any]]] = {name: [] for name in names}
        for i, j in pairs(len(names)):
            source, target = names[i], names[j]
            for own, other in zip(self._ends[source], self._ends[target]):
                if other in self._ports[target]:
                    self._asked.setdefault(source, []).append(target)
                    for name in (source, target):
                        self.moved[name] += TRY_BYTES + TRY_BYTES // 8  # and what goes around it
                    targets[source].append({
                        "address": other,
                        "port": self._ports[target][other],
                        "token": self._tokens[target],
                        "source": own,
                    })  # fmt: skip
        for name in self._asked:
            self._tell(name, **{"try": targets[name]}, timeouts=self._timeouts)


def _is_numbers(address: str) -> bool:
    """False for a name, for which somebody would have to be asked."""
    return ":" in address or address.replace(".", "").isdigit()


def judge(tried: Iterable[Tried], stuck: Mapping[Pair, int]) -> Optional[LinkFault]:
    """Returns what does not pass, the most telling fault first; None where all is well.

    `stuck` says of pairs of hosts how often a rank's data was sent again there, in vain.
    """
    faults: Dict[str, List[Tried]] = {}
    for one in tried:
        if one.text == CLOSED:
            continue  # it listens no more, as a host does that comes to its end
        if one.kind == "large-lost-back":
            one = one._replace(source=one.target, target=one.source, kind="large-lost")
        faults.setdefault(_KINDS.get(one.kind, ""), []).append(one)
    passed = {(one.source, one.target) for one in faults.pop("", ())}
    for kind in ("own", "stranger", "unreachable", "refused", "no-answer", "large-lost"):
        if kind in faults:
            return _fault(kind, faults[kind], passed)
    dead = sorted((pair for pair in stuck if pair in passed), key=lambda pair: -stuck[pair])
    if not dead:
        return None
    source, target = dead[0]
    what = (
        f"a connection from {source} to {target} is dead, though new ones pass: what was sent "
        f"on it was sent again {stuck[dead[0]]} times in vain"
    )
    return LinkFault(what, _IDLE, source)


_KINDS = {
    "error": "own",
    "wrong-host": "stranger",
    "unreachable": "unreachable",
    "refused": "refused",
    "no-answer": "no-answer",
    "silent": "no-answer",
    "large-lost": "large-lost",
}


def _fault(kind: str, tried: Sequence[Tried], passed: Set[Pair]) -> LinkFault:
    """Says a fault of one kind in words."""
    first = tried[0]
    source, target = first.source, first.target
    if kind == "own":
        return LinkFault(
            f"{source} cannot use its own address on the run's network: {first.text}",
            f"see whether the interface is up and has its address: `ip addr` on {source}",
            source,
        )
    if kind == "stranger":
        return LinkFault(
            f"at the address of {target}, {source} meets another machine",
            "see which machine has taken that address, and give it another one",
            target,
        )
    failed = {(one.source, one.target) for one in tried}
    host = _common(failed)
    if kind == "large-lost":
        to = {b for _, b in failed}
        where = f"to {host}" if {host} == to else f"from {host}" if host else ""
        others = _names(failed, host)
        if not where:
            where, others = _arrows(failed), ""
        also = (f" (from {others})" if where.startswith("to") else f" (to {others})") * bool(others)
        return LinkFault(
            f"large packets {where}{also} vanish, while small ones pass", _SAME_MTU, host or target
        )
    how = {
        "unreachable": first.text or "no route",
        "refused": "connections are refused, as by a firewall",
        "no-answer": "no answer, as if packets were dropped",
    }[kind]
    both = {frozenset(pair) for pair in failed}
    if host:
        return LinkFault(f"{host} and {_names(failed, host)} {_NOT} ({how})", _FIREWALL, host)
    one_way = len(failed) == 1 and (target, source) in passed
    if one_way:
        what = f"{source} gets no connection to {target} ({how}), while {target} gets one to it"
        return LinkFault(what, _FIREWALL, target)
    who = "; ".join(f"{a} and {b}" for a, b in sorted(map(sorted, both))[:_SHOWN])
    more = f" and {len(both) - _SHOWN} more pairs" if len(both) > _SHOWN else ""
    return LinkFault(f"{who}{more} {_NOT} ({how})", _FIREWALL, target)


_NOT = "do not reach each other"


def _common(failed: Set[Pair]) -> str:
    """The one host that all pairs have in common, where there are several others; else ""."""
    hosts = set.intersection(*(set(pair) for pair in failed))
    others = {name for pair in failed for name in pair} - hosts
    return min(hosts) if len(hosts) == 1 and len(others) > 1 else ""


def _names(failed: Set[Pair], host: str) -> str:
    names = sorted({name for pair in failed for name in pair} - {host})
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _arrows(failed: Set[Pair]) -> str:
    shown = [f"from {a} to {b}" for a, b in sorted(failed)]
    more = f" and {len(shown) - _SHOWN} more ways" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
