"""Asks hosts which of their networks truly join them, and how fast those are.

First every network between every two hosts at once (only silence takes long, and it is waited for
once). On a slow wire they may hold each other up: then what failed is tried again by few. Then,
one network after the other, how fast those are that join all hosts: between disjoint pairs at a
time, so that no two of them share a host's cable.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from shanty.launch.cluster.parallel import side_by_side
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.network.rounds import Talk, every, few, pairs, ring, some_pairs
from shanty.launch.network.topology import Network
from shanty.runtime.errors import ShantyError

Pair = tuple[str, str]  # from one host to another one, by name

TIMEOUT = 2.0  # seconds for a connection, and again for the bytes; a lost SYN is sent again after 1
SECONDS = 0.25  # that a flood takes
WORTH = 0.65  # of the best one: what slower ones cannot add anything where data is dealt evenly
_MOST_NETWORKS = 4  # that are measured for speed before a run
_PATIENCE = 20.0  # seconds; no verb may take half of that
_SUSPECT = 0.035  # seconds for 64 KiB there and back: less than 30 Mbit/s, or a busy host
_CONTACT = ("kind", "text", "via", "seconds")
_AGAIN = 3.0  # TIMEOUT of what is tried again by few
_CROWDED = 0.5  # seconds for the bytes of some pair from which on others may have been held up
_HELD_UP = ("large-lost", "large-lost-back", "silent")


@dataclass(frozen=True, slots=True)
class Contact:
    """What came of trying to reach one host from another one: as the verb `net-probe` tells.

    `seconds` is what the bytes took, there and back.
    """

    kind: str
    text: str = ""
    via: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when connections and data pass."""
        return self.kind == "ok"

    @property
    def crowded(self) -> bool:
        """True when there were more packets than the wire could take, or it loses them anyhow."""
        return self.kind in _HELD_UP or self.seconds > _CROWDED


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one host sends to another one: `rate` in bytes/s, `latency` in seconds, one way."""

    rate: float
    latency: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found out about `networks` between `hosts`; the mappings are by network's name.

    `together` has the rates of several networks that were used at the same time, by the names
    of them and by pair: one for each network, in that order. `whole` is true for what
    `measure_all` found.
    """

    hosts: tuple[str, ...]
    networks: tuple[Network, ...]
    contacts: Mapping[str, Mapping[Pair, Contact]] = field(default_factory=dict)
    paces: Mapping[str, Mapping[Pair, Pace]] = field(default_factory=dict)
    together: Mapping[tuple[str, ...], Mapping[Pair, tuple[float, ...]]] = field(
        default_factory=dict
    )
    whole: bool = False

    def joins(self, network: Network) -> bool:
        """True when every pair of hosts that was tried could talk over the network."""
        contacts = self.contacts.get(network.name, {})
        whole = set(network.tried) == set(self.hosts)
        return whole and bool(contacts) and all(one.ok for one in contacts.values())

    def serving(self) -> list[Network]:
        """The networks that a run may take: they join all hosts, and each goes over cables of its
        own. IPv6 only where IPv4 does not serve, since not every MPI can use it."""
        joining = [network for network in self.networks if self.joins(network)]
        family = [network for network in joining if network.version == 4] or joining
        found: dict[frozenset[tuple[str, str]], Network] = {}
        for network in family:
            found.setdefault(network.wires, network)
        return list(found.values())

    def by_ssh(self, network: Network) -> bool:
        """True for a network that goes over the cables that ssh takes."""
        return any(other.ssh and other.wires == network.wires for other in self.networks)

    def rate(self, name: str) -> float:
        """The rate of the slowest pair: a ring goes as fast as that. 0 where not measured."""
        return min((pace.rate for pace in self.paces.get(name, {}).values()), default=0.0)


# ----------------------------------------------------------------------------------- measuring


def measure(
    clients: Mapping[str, RpcClient],
    networks: Sequence[Network],
    say: Callable[[str], None],
    *,
    ports: tuple[int, int] | None = None,
) -> Measured:
    """What a run needs to know: which networks join all hosts; if several do, how fast they are.

    A single one is measured where it seems to be slow. Networks that some host lacks are not
    tried. PrepareError when a host is lost meanwhile.
    """
    whole = [network for network in networks if set(network.tried) == set(clients)]
    with _listening(clients, whole, ports) as site:
        say(f"tries {_count(len(whole))} between {len(clients)} hosts")
        found = Measured(tuple(clients), tuple(networks), site.contacts(whole))
        rivals = found.serving()
        if len(rivals) > 1:
            rivals.sort(
                key=lambda one: (not found.by_ssh(one), -min(one.speeds.values(), default=0.0))
            )
            rivals = rivals[:_MOST_NETWORKS]
            found = _paced(site, found, rivals, ring(len(clients)), say)
        elif any(
            one.seconds > _SUSPECT
            for network in rivals
            for one in found.contacts[network.name].values()
        ):
            found = _paced(site, found, rivals, every(len(clients)), say)
    return found


def measure_all(
    clients: Mapping[str, RpcClient],
    networks: Sequence[Network],
    say: Callable[[str], None],
    *,
    ports: tuple[int, int] | None = None,
) -> Measured:
    """What a person wants to know: all networks, also those that only some hosts have, and the
    speed between every two hosts (of more than 8: around a ring)."""
    count = len(clients)
    several = [network for network in networks if len(network.tried) > 1]
    with _listening(clients, several, ports) as site:
        say(f"tries {_count(len(several))} between {count} hosts")
        found = Measured(tuple(clients), tuple(networks), site.contacts(several))
        joining = [network for network in several if found.joins(network)]
        return replace(_paced(site, found, joining, every(count), say), whole=True)


def reach(
    clients: Mapping[str, RpcClient],
    networks: Sequence[Network],
    *,
    ports: tuple[int, int] | None = None,
) -> Measured:
    """Only whether the hosts reach each other over these networks, by few pairs."""
    with _listening(clients, networks, ports) as site:
        return Measured(tuple(clients), tuple(networks), site.contacts(networks, some_pairs))


def _paced(
    site: _Site,
    found: Measured,
    networks: Sequence[Network],
    rounds: Sequence[Sequence[tuple[int, int]]],
    say: Callable[[str], None],
) -> Measured:
    """`found`, and how fast the networks are, alone and together."""
    paces = {}
    for network in networks:
        say(f"measures {network.name}")
        paces[network.name] = site.paces(network, rounds)
    found = replace(found, paces=paces)
    rivals = [network for network in found.serving() if network.name in paces]
    best = max((found.rate(network.name) for network in rivals), default=0.0)
    near = [network for network in rivals if found.rate(network.name) >= WORTH * best > 0]
    if len(near) < 2:
        return found
    edges = ring(len(found.hosts))
    for network in near:  # once more: a host that was busy must not make striping look good
        say(f"measures {network.name} again")
        for pair, pace in site.paces(network, edges).items():
            paces[network.name][pair] = max(pace, paces[network.name][pair], key=_rate)
    say(f"measures {' and '.join(network.name for network in near)} together")
    both = {
        pair: tuple(pace.rate for pace in each) for pair, each in site.floods(near, edges).items()
    }
    return replace(found, together={tuple(network.name for network in near): both})


def _rate(pace: Pace) -> float:
    return pace.rate


class _Site:
    """Hosts that listen for each other."""

    def __init__(
        self,
        clients: Mapping[str, RpcClient],
        tokens: Mapping[str, str],
        ports: Mapping[str, Mapping[str, int]],
        errors: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._clients = clients
        self._tokens = tokens
        self._ports = ports
        self._errors = errors

    def contacts(
        self,
        networks: Sequence[Network],
        pairs: Callable[[int], list[tuple[int, int]]] = pairs,
    ) -> dict[str, dict[Pair, Contact]]:
        """Who can talk to whom over each of the networks: all at the same time, and what may have
        failed by that once more."""
        found: dict[Talk, Contact] = {}
        plan: dict[Talk, Network] = {}
        for network in networks:
            ends = [name for name in self._clients if name in network.tried]
            for source, target in ((ends[i], ends[j]) for i, j in pairs(len(ends))):
                deaf = self._errors[target].get(network.ends[target].address)
                if deaf is not None:
                    found[network.name, source, target] = Contact("error", f"{target}: {deaf}")
                else:
                    plan[network.name, source, target] = network
        tried = self._tried(plan, TIMEOUT)
        found |= tried
        if any(contact.crowded for contact in tried.values()):
            found |= self._again({talk: plan[talk] for talk in tried if not tried[talk].ok})
        by_name: dict[str, dict[Pair, Contact]] = {network.name: {} for network in networks}
        for (name, source, target), contact in found.items():
            by_name[name][source, target] = contact
        return by_name

    def _again(self, plan: Mapping[Talk, Network]) -> dict[Talk, Contact]:
        """By few, which cannot hold each other up; by more as long as not one of them passes,
        since then it is not for want of room, and silence takes long."""
        found: dict[Talk, Contact] = {}
        left, each = list(plan), 1
        while left:
            now, rest = few(left, each)
            tried = self._tried({talk: plan[talk] for talk in now}, _AGAIN)
            if each > 1 and any(contact.ok for contact in tried.values()):
                tried = {talk: contact for talk, contact in tried.items() if contact.ok}
                each = 1
            elif not any(contact.ok for contact in tried.values()):
                each *= 4
            found |= tried
            left = [*rest, *(talk for talk in now if talk not in tried)]
        return found

    def _tried(self, plan: Mapping[Talk, Network], timeout: float) -> dict[Talk, Contact]:
        """What comes of these talks, all at the same time."""
        own = {name: [talk for talk in plan if talk[1] == name] for name in self._clients}

        def probe(client: RpcClient) -> list[Contact]:
            talks = own[client.host.name]
            targets = [self._target(plan[talk], talk[1], talk[2]) for talk in talks]
            answer = client.ask(
                "net-probe", targets=targets, timeout=timeout, patience=_PATIENCE
            ).values["results"]
            return [Contact(*(one[key] for key in _CONTACT)) for one in answer]

        asked = [client for name, client in self._clients.items() if own[name]]
        results = side_by_side(asked, probe)
        return {
            talk: contact
            for name, contacts in results.items()
            for talk, contact in zip(own[name], contacts, strict=True)
        }

    def paces(
        self, network: Network, rounds: Sequence[Sequence[tuple[int, int]]]
    ) -> dict[Pair, Pace]:
        """How fast the pairs are over one network."""
        return {pair: each[0] for pair, each in self.floods([network], rounds).items()}

    def floods(
        self, networks: Sequence[Network], rounds: Sequence[Sequence[tuple[int, int]]]
    ) -> dict[Pair, list[Pace]]:
        """How fast the pairs are over all of the networks at the same time."""
        names = list(self._clients)
        found: dict[Pair, list[Pace]] = {}
        for games in rounds:
            to = {names[i]: names[j] for i, j in games}

            def flood(client: RpcClient, to: Mapping[str, str] = to) -> list[Pace]:
                name = client.host.name
                targets = [self._target(network, name, to[name]) for network in networks]
                answer = client.ask(
                    "net-send", targets=targets, seconds=SECONDS, patience=_PATIENCE
                ).values["results"]
                return [Pace(one["rate"], one["latency"]) for one in answer]

            results = side_by_side([self._clients[name] for name in to], flood)
            found.update({(name, to[name]): paces for name, paces in results.items()})
        return found

    def _target(self, network: Network, source: str, target: str) -> dict[str, Any]:
        address = network.ends[target].address
        return {
            "address": address,
            "port": self._ports[target][address],
            "token": self._tokens[target],
            "source": network.ends[source].address,
        }


@contextmanager
def _listening(
    clients: Mapping[str, RpcClient], networks: Sequence[Network], ports: tuple[int, int] | None
) -> Iterator[_Site]:
    """All hosts listen at their ends of the networks, up to the end of the block."""
    tokens = {name: secrets.token_hex(16) for name in clients}

    def listen(client: RpcClient) -> dict[str, Any]:
        name = client.host.name
        ends = {network.ends[name].address for network in networks if name in network.tried}
        return client.ask(
            "net-listen",
            addresses=sorted(ends),
            token=tokens[name],
            ports=ports,
            patience=_PATIENCE,
        ).values

    try:
        answers = side_by_side(list(clients.values()), listen)
        yield _Site(
            clients,
            tokens,
            {name: answer["ports"] for name, answer in answers.items()},
            {name: answer["errors"] for name, answer in answers.items()},
        )
    finally:
        with suppress(ShantyError):  # a host that is lost no longer listens
            side_by_side(
                list(clients.values()),
                lambda client: client.ask("net-close", patience=_PATIENCE).values,
            )


def _count(number: int) -> str:
    return f"{number} network" if number == 1 else f"{number} networks"
