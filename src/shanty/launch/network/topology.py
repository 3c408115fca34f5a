"""Networks: those that hosts may have in common, their measurements, and what a run takes.

Nothing is tried here; `networks` finds the candidates, from the interfaces of the hosts.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shanty.launch.finding import Finding

if TYPE_CHECKING:
    from shanty.launch.transport.rpc_client import RpcClient

Surveys = Mapping[str, Mapping[str, Any]]  # the hosts' own, by name
Ports = tuple[int, int] | None  # the first and the last that are allowed; None for any
BY_SSH = "the addresses of ssh"  # the name of the network of last resort
Pair = tuple[str, str]  # from one host to another one, by name
_CROWDED = 0.5  # seconds for the bytes of a pair, above which others may have been delayed
_HELD_UP = ("large-lost", "large-lost-back", "silent")


@dataclass(frozen=True, slots=True)
class Interface:
    """One host's end of a network; `prefix` is the length of the network's part in bits."""

    name: str
    address: str
    prefix: int

    @property
    def network(self) -> str:
        """The network, as 10.0.0.0/24."""
        plain = self.address.partition("%")[0]
        return str(ipaddress.ip_interface(f"{plain}/{self.prefix}").network)


@dataclass(frozen=True, slots=True)
class Rail:
    """One network that joins all hosts of a run: the interface of each, by the host's name."""

    interfaces: Mapping[str, Interface]

    @property
    def networks(self) -> tuple[str, ...]:
        """The network, or several networks if hosts are routed to each other."""
        return tuple(dict.fromkeys(each.network for each in self.interfaces.values()))


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen networks: the best rail first; more than one if striping measured faster.

    Empty without a choice, or if no network joins all hosts. `reason` is for the user.
    """

    rails: tuple[Rail, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """A host that answers; `address` is where the lead host's ssh finds it, "" if unknown."""

    name: str
    client: RpcClient
    survey: Mapping[str, Any]
    address: str


@dataclass(frozen=True, slots=True)
class Network:
    """Interfaces of several hosts that may reach each other.

    `name` is 10.0.0.0/24, or the name of an interface if each host's is in a different network and
    these may be routed to each other, or `BY_SSH`.
    """

    name: str
    ends: Mapping[str, Interface]  # by the host's name
    down: frozenset[str] = frozenset()  # hosts whose end carries nothing
    doubled: frozenset[str] = frozenset()  # hosts with the same address as another one
    speeds: Mapping[str, float] = field(default_factory=dict)  # bytes/s, if the kernel reports it
    ssh: bool = False  # ssh uses it

    @property
    def rail(self) -> Rail:
        """The network as a run takes it."""
        return Rail(self.ends)

    @property
    def version(self) -> int:
        """4 or 6: of the Internet Protocol."""
        return 6 if any(":" in end.address for end in self.ends.values()) else 4

    @property
    def wires(self) -> frozenset[tuple[str, str]]:
        """The interfaces, as (host, interface): equal for two networks over the same cables."""
        return frozenset((host, end.name) for host, end in self.ends.items())

    @property
    def tried(self) -> list[str]:
        """The hosts whose ends may reach each other."""
        return [host for host in self.ends if host not in self.down and host not in self.doubled]


@dataclass(frozen=True, slots=True)
class Contact:
    """The result of trying to reach one host from another: an answer of the verb `net-probe`."""

    kind: str
    text: str = ""
    via: str = ""
    seconds: float = 0.0  # of the bytes, there and back

    @property
    def ok(self) -> bool:
        """True when connections and data pass."""
        return self.kind == "ok"

    @property
    def crowded(self) -> bool:
        """True if the wire was overloaded, or loses packets anyway."""
        return self.kind in _HELD_UP or self.seconds > _CROWDED


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed from one host to another: `rate` in bytes/s, `latency` in seconds, one way."""

    rate: float
    latency: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of `networks` between `hosts`; the mappings are by network's name."""

    hosts: tuple[str, ...]
    networks: tuple[Network, ...]
    contacts: Mapping[str, Mapping[Pair, Contact]] = field(default_factory=dict)
    paces: Mapping[str, Mapping[Pair, Pace]] = field(default_factory=dict)
    # the rates of networks that were used at the same time, in the order of their names
    together: Mapping[tuple[str, ...], Mapping[Pair, tuple[float, ...]]] = field(
        default_factory=dict
    )
    whole: bool = False  # `measure_all` has found it

    def joins(self, network: Network) -> bool:
        """True when every pair of hosts that was tried could talk over the network."""
        tried = set(network.tried) == set(self.hosts) and self.contacts.get(network.name)
        return bool(tried) and not self.failed(network)

    def failed(self, network: Network) -> dict[Pair, Contact]:
        """Returns the pairs that could not talk over the network."""
        contacts = self.contacts.get(network.name, {})
        return {pair: one for pair, one in contacts.items() if not one.ok}

    def serving(self) -> list[Network]:
        """Returns the networks that a run may take: they join all hosts over their own cables."""
        joining = [network for network in self.networks if self.joins(network)]
        # not every MPI can use IPv6
        family = [network for network in joining if network.version == 4] or joining
        found: dict[frozenset[tuple[str, str]], Network] = {}
        for network in family:
            found.setdefault(network.wires, network)
        return list(found.values())

    def by_ssh(self, network: Network) -> bool:
        """True for a network that goes over the cables that ssh takes."""
        return any(other.ssh and other.wires == network.wires for other in self.networks)

    def rate(self, name: str) -> float:
        """Returns the rate of the slowest pair: a ring goes as fast as that. 0 where unmeasured."""
        return min((pace.rate for pace in self.paces.get(name, {}).values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The classification of one network. `kind` is one of

    "chosen"; "joins", it could be taken; "slow", it joins and another network is faster; "partial",
    not all hosts have it; "dead", an end carries nothing, or no host reaches another; "isolated",
    the same address on several hosts; "blocked", "half-open" (one direction only), "black-hole"
    (large packets vanish). `text` explains it.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The route that a run takes, and what is wrong."""

    route: Route
    findings: tuple[Finding, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by the network's name
    joining: tuple[Rail, ...] = ()  # all networks that joined all hosts
    age: float | None = None  # seconds since they were measured; None for now
    seconds: float = 0.0  # that the choice took


def networks(hosts: Sequence[SurveyedHost]) -> list[Network]:
    """Returns the networks of the hosts: that of ssh first, then those that join the most hosts,
    IPv4 before IPv6. Link-local addresses are left out, and so are networks of a single host,
    unless its end is up and carries nothing."""
    own = {host.name: host.address for host in hosts}
    total = len(hosts)
    # of two ends in one network that of ssh counts, then one with a carrier
    found = sorted(
        (end for host in hosts for end in _ends_of(host)),
        key=lambda end: (end.interface.address != own[end.host], not end.carries),
    )
    groups: dict[str, _Group] = {}
    for end in found:
        groups.setdefault(end.interface.network, {}).setdefault(end.host, end)
    kept = {name: group for name, group in groups.items() if len(group) > 1}
    # interfaces with the same name that share no network with another host: they may be routed
    by_name: dict[str, _Group] = {}
    for end in found:
        if end.interface.network not in kept and ":" not in end.interface.address:
            by_name.setdefault(end.interface.name, {}).setdefault(end.host, end)
    for name, group in by_name.items():
        if len(group) == total > 1:
            kept.setdefault(name, group)
    for name, group in groups.items():
        if len(group) == 1 and all(end.idle for end in group.values()):
            kept.setdefault(name, group)
    result = [_network(name, group, own) for name, group in kept.items()]
    # If ssh takes different common networks to different hosts, its addresses are not a network of
    # their own. An address of ssh that the host does not have is translated on the way, so the host
    # cannot listen there.
    by_ssh = {end.host: end for end in found if end.interface.address == own[end.host]}
    whole = [group for group in groups.values() if len(group) == total]
    crossed = sum(
        any(end.interface.address == own[host] for host, end in group.items()) for group in whole
    )
    if len(by_ssh) == total > 1 and crossed < 2 and not any(network.ssh for network in result):
        network = _network(BY_SSH, by_ssh, own)
        if network.wires not in {other.wires for other in result}:
            result.append(network)
    return sorted(result, key=lambda one: (not one.ssh, -len(one.tried), one.version, one.name))


def fingerprint(hosts: Iterable[SurveyedHost]) -> str:
    """Returns a hash of everything that may change which network is best: the hosts' interfaces,
    addresses, speeds and carriers; independent of the order of hosts and addresses."""
    facts = []
    for host in hosts:
        addresses = sorted(
            [str(entry[key]) for key in ("interface", "address", "prefix", "up")]
            for entry in usable(host.survey["addresses"])
        )
        names = {address[0] for address in addresses}
        links = sorted(
            [name, link["speed"], link["mtu"], link["kind"]]
            for name, link in host.survey.get("links", {}).items()
            if name in names
        )
        facts.append([host.name, host.address, addresses, links])
    text = json.dumps(sorted(facts, key=lambda fact: str(fact[0])))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def usable(addresses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the addresses that may lead to another host: no loopback, nothing link-local."""
    found = []
    for entry in addresses:
        address = ipaddress.ip_address(entry["address"].partition("%")[0])
        if not (entry["loopback"] or address.is_loopback or address.is_link_local):
            found.append(entry)
    return found


class _End(NamedTuple):
    """One address of one host; `idle` means that its interface is up, without a carrier."""

    host: str
    interface: Interface
    carries: bool
    idle: bool
    speed: float


_Group = dict[str, _End]  # by host


def _ends_of(host: SurveyedHost) -> Iterator[_End]:
    for entry in usable(host.survey["addresses"]):
        link = host.survey.get("links", {}).get(entry["interface"], {})
        interface = Interface(entry["interface"], entry["address"], entry["prefix"])
        carries = bool(entry["up"])
        # an unused bridge has no carrier
        idle = not carries and link.get("up", False) and link["kind"] != "bridge"
        yield _End(host.name, interface, carries, idle, (link.get("speed") or 0) * 125e3)


def _network(name: str, group: _Group, own: Mapping[str, str]) -> Network:
    ends = {host: group[host] for host in own if host in group}
    addresses = [end.interface.address for end in ends.values()]
    return Network(
        name,
        {host: end.interface for host, end in ends.items()},
        frozenset(host for host, end in ends.items() if not end.carries),
        frozenset(h for h, end in ends.items() if addresses.count(end.interface.address) > 1),
        {host: end.speed for host, end in ends.items() if end.speed},
        all(host in ends and ends[host].interface.address == own[host] for host in own),
    )
