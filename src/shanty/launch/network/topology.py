"""Finds the networks that hosts may have in common, by their interfaces; nothing is tried."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shanty.launch.network.route import Interface, Rail

BY_SSH = "the addresses of ssh"  # the name of the network of last resort


class HostWithNetworks(Protocol):
    """A host, what its survey told, and the address by which the lead host's ssh reaches it."""

    @property
    def name(self) -> str:
        """The name that the user gave it."""

    @property
    def survey(self) -> Mapping[str, Any]:
        """The answer of its verb `survey`."""

    @property
    def address(self) -> str:
        """Its address in numbers; "" if that is not known."""


@dataclass(frozen=True, slots=True)
class Network:
    """Interfaces of several hosts that may reach each other.

    `name` is 10.0.0.0/24, the name of an interface where each host's is in a network of its own
    and they may be routed to each other, or `BY_SSH`. `ends` has the interface of each host that
    has one, by the host's name. `down` are hosts whose end carries nothing, `doubled` those
    that have the same address as another one. `speeds` is what the kernel says of the ends, in
    bytes/s, where it does. `ssh` is true where this is where ssh goes.
    """

    name: str
    ends: Mapping[str, Interface]
    down: frozenset[str] = frozenset()
    doubled: frozenset[str] = frozenset()
    speeds: Mapping[str, float] = field(default_factory=dict)
    ssh: bool = False

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


def networks(hosts: Sequence[HostWithNetworks]) -> list[Network]:
    """Returns the networks of the hosts: that of ssh first, then those that join the most hosts,
    IPv4 before IPv6. Link-local addresses are left out, and so are networks that only one host has,
    but for those where its end is up and carries nothing."""
    own = {host.name: host.address for host in hosts}
    found = [
        _Entry(host.name, entry, host.survey.get("links", {}).get(entry["interface"], {}))
        for host in hosts
        for entry in usable(host.survey["addresses"])
    ]
    # of two ends in one network the one where ssh goes counts, then one that carries something
    found.sort(key=lambda one: (one.interface.address != own[one.host], not one.carries))
    groups: dict[str, dict[str, _Entry]] = {}
    for one in found:
        groups.setdefault(one.network, {}).setdefault(one.host, one)
    kept = {name: group for name, group in groups.items() if len(group) > 1}
    total = len(hosts)
    for name, group in _by_interface(found, kept).items():
        if len(group) == total > 1:
            kept.setdefault(name, group)
    for name, group in groups.items():
        if len(group) == 1 and all(one.idle for one in group.values()):
            kept.setdefault(name, group)
    result = [_network(name, group, own) for name, group in kept.items()]
    # Hosts that have networks in common are no two ends of a way through several of them: where
    # ssh takes one to this host and another to that, neither joins all.
    whole = [group for group in groups.values() if len(group) == total]
    by_ssh = [
        group
        for group in whole
        if any(one.interface.address == own[host] for host, one in group.items())
    ]
    if total > 1 and len(by_ssh) < 2 and not any(network.ssh for network in result):
        result += _by_ssh(hosts, found, own, {network.wires for network in result})
    return sorted(result, key=lambda one: (not one.ssh, -len(one.tried), one.version, one.name))


def fingerprint(hosts: Iterable[HostWithNetworks]) -> str:
    """Returns a hash of all that may change which network is best: the hosts' interfaces,
    addresses, speeds, and what carries; in whatever order hosts and addresses are."""
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


@dataclass(frozen=True, slots=True)
class _Entry:
    """One address of one host."""

    host: str
    entry: Mapping[str, Any]
    link: Mapping[str, Any]

    @property
    def interface(self) -> Interface:
        return Interface(self.entry["interface"], self.entry["address"], self.entry["prefix"])

    @property
    def network(self) -> str:
        text = f"{self.entry['address']}/{self.entry['prefix']}"
        return str(ipaddress.ip_interface(text).network)

    @property
    def carries(self) -> bool:
        return bool(self.entry["up"])

    @property
    def idle(self) -> bool:
        """Meant to be up, and dead; a bridge is without a carrier while nobody uses it."""
        wanted = self.link.get("up", False) and self.link["kind"] != "bridge"
        return wanted and not self.carries


def usable(addresses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the addresses that may lead to another host: no loopback, nothing link-local."""
    found = []
    for entry in addresses:
        address = ipaddress.ip_address(entry["address"].partition("%")[0])
        if not (entry["loopback"] or address.is_loopback or address.is_link_local):
            found.append(entry)
    return found


def _by_interface(
    found: Sequence[_Entry], kept: Mapping[str, Mapping[str, _Entry]]
) -> dict[str, dict[str, _Entry]]:
    """Groups interfaces of one name that are in no network with another host's: maybe routed."""
    alone: dict[str, dict[str, _Entry]] = {}
    for one in found:
        if one.network not in kept and one.interface.address.count(":") == 0:
            alone.setdefault(one.interface.name, {}).setdefault(one.host, one)
    return alone


def _by_ssh(
    hosts: Sequence[HostWithNetworks],
    found: Sequence[_Entry],
    own: Mapping[str, str],
    known: set[frozenset[tuple[str, str]]],
) -> list[Network]:
    group = {one.host: one for one in found if one.interface.address == own[one.host]}
    if len(group) < len(hosts):
        return []  # an address that is translated on the way: no host can listen there
    network = _network(BY_SSH, group, own)
    return [network] if network.wires not in known else []


def _network(name: str, group: Mapping[str, _Entry], own: Mapping[str, str]) -> Network:
    group = {host: group[host] for host in own if host in group}
    addresses = [one.interface.address for one in group.values()]
    return Network(
        name,
        {host: one.interface for host, one in group.items()},
        frozenset(host for host, one in group.items() if not one.carries),
        frozenset(h for h, one in group.items() if addresses.count(one.interface.address) > 1),
        {h: one.link["speed"] * 125e3 for h, one in group.items() if one.link.get("speed")},
        all(host in group and group[host].interface.address == own[host] for host in own),
    )
