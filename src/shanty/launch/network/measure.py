"""Measures which networks join hosts, and how fast they are.

First every network is tried between every two hosts at once, since timeouts take long. On a slow
wire they may delay each other, so pairs that failed are tried again, a few at a time. Then the
networks that join all hosts are timed, one after the other, between disjoint pairs, so that two
pairs never share a host's cable.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from shanty.launch.network.topology import Contact, Measured, Network, Pace, Pair, Ports
from shanty.launch.transport.parallel import Say, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import ShantyError
from shanty.runtime.network_probe import pairs, some_pairs

Clients = Mapping[str, RpcClient]  # by the host's name
Round = Sequence[tuple[int, int]]  # pairs of hosts, by number, that are timed at the same time
Talk = tuple[str, str, str]  # the network, the connecting host and the other host, by name

TIMEOUT = 2.0  # seconds for a connection, and again for the bytes; a lost SYN is sent again after 1
SECONDS = 0.25  # of a flood
WORTH = 0.65  # of the best rate: slower networks do not help where data is distributed evenly
_MOST_NETWORKS = 4  # whose speed is measured before a run
_PATIENCE = 20.0  # seconds; no verb takes half of that
_SUSPECT = 0.035  # seconds for 64 KiB there and back: less than 30 Mbit/s, or a busy host
_ALL_PACES = 8  # hosts up to which `every` has all pairs
_AGAIN = 3.0  # TIMEOUT of the second attempt, a few at a time


def ring(count: int) -> list[list[tuple[int, int]]]:
    """Returns the edges of a ring in rounds; in a round every host is in one edge at most."""
    edges = [(i, (i + 1) % count) for i in range(count)]
    last = edges[-1:] if count % 2 or count == 2 else []
    rest = edges[: count - len(last)]
    return [found for found in (rest[::2], rest[1::2], last) if found]


def tournament(count: int) -> list[list[tuple[int, int]]]:
    """Returns all ordered pairs in such rounds (circle method: one stays, the others go around)."""
    seats = [*range(count), *([-1] if count % 2 else [])]  # the partner of -1 waits
    half, rounds = len(seats) // 2, []
    for _ in range(len(seats) - 1):
        met = [(a, b) for a, b in zip(seats[:half], seats[: half - 1 : -1], strict=True)]
        games = [(a, b) for a, b in met if a >= 0 and b >= 0]
        rounds += [games, [(b, a) for a, b in games]]
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def few(talks: Sequence[Talk], each: int) -> tuple[list[Talk], list[Talk]]:
    """Splits `talks` into a part in which every host has at most `each`, and the rest."""
    busy: Counter[str] = Counter()
    taken: list[Talk] = []
    rest: list[Talk] = []
    for talk in talks:
        fits = max(busy[name] for name in talk[1:]) < each
        (taken if fits else rest).append(talk)
        if fits:
            busy.update(talk[1:])
    return taken, rest


def every(count: int) -> list[list[tuple[int, int]]]:
    """Returns all pairs for few hosts, else a ring."""
    return tournament(count) if count <= _ALL_PACES else ring(count)


def measure(clients: Clients, networks: Sequence[Network], say: Say, ports: Ports) -> Measured:
    """Measures for a run: which networks join all hosts; if several do, how fast they are.

    A single network is timed only if it seems to be slow. Networks that a host lacks are not tried.
    PrepareError when a host is lost meanwhile.
    """
    whole = [network for network in networks if set(network.tried) == set(clients)]
    with _listening(clients, whole, ports) as hosts:
        found = _tried(hosts, networks, whole, say)
        rivals = found.serving()
        if len(rivals) > 1:
            rivals.sort(
                key=lambda one: (not found.by_ssh(one), -min(one.speeds.values(), default=0.0))
            )
            return _add_paces(hosts, found, rivals[:_MOST_NETWORKS], ring(len(clients)), say)
        alone = [one for network in rivals for one in found.contacts[network.name].values()]
        if any(one.seconds > _SUSPECT for one in alone):
            return _add_paces(hosts, found, rivals, every(len(clients)), say)
    return found


def measure_all(clients: Clients, networks: Sequence[Network], say: Say, ports: Ports) -> Measured:
    """Measures for the user: all networks, also those that only some hosts have, and the speed
    between every two hosts (with more than 8: around a ring)."""
    several = [network for network in networks if len(network.tried) > 1]
    with _listening(clients, several, ports) as hosts:
        found = _tried(hosts, networks, several, say)
        joining = [network for network in several if found.joins(network)]
        return replace(_add_paces(hosts, found, joining, every(len(clients)), say), whole=True)


def reach(clients: Clients, ports: Ports, networks: Sequence[Network]) -> Measured:
    """Tries with few pairs whether the hosts reach each other over these networks."""
    with _listening(clients, networks, ports) as hosts:
        return Measured(tuple(clients), tuple(networks), hosts.contacts(networks, some_pairs))


def _tried(
    hosts: Listeners, networks: Sequence[Network], some: Sequence[Network], say: Say
) -> Measured:
    count = "1 network" if len(some) == 1 else f"{len(some)} networks"
    say(f"tries {count} between {len(hosts.clients)} hosts")
    return Measured(tuple(hosts.clients), tuple(networks), hosts.contacts(some))


def _add_paces(
    hosts: Listeners,
    found: Measured,
    networks: Sequence[Network],
    rounds: Sequence[Round],
    say: Say,
) -> Measured:
    paces = {}
    for network in networks:
        say(f"measures {network.name}")
        paces[network.name] = hosts.paces(network, rounds)
    found = replace(found, paces=paces)
    rivals = [network for network in found.serving() if network.name in paces]
    best = max((found.rate(network.name) for network in rivals), default=0.0)
    near = [network for network in rivals if found.rate(network.name) >= WORTH * best > 0]
    if len(near) < 2:
        return found
    edges = ring(len(found.hosts))
    for network in near:  # again, since a busy host must not make striping look good
        say(f"measures {network.name} again")
        for pair, pace in hosts.paces(network, edges).items():
            paces[network.name][pair] = max(
                pace, paces[network.name][pair], key=lambda each: each.rate
            )
    say(f"measures {' and '.join(network.name for network in near)} together")
    both = {
        pair: tuple(pace.rate for pace in each) for pair, each in hosts.floods(near, edges).items()
    }
    return replace(found, together={tuple(network.name for network in near): both})


@dataclass
class Listeners:
    """Hosts that listen for each other at their ends of networks."""

    clients: Clients
    tokens: Mapping[str, str]
    answers: Mapping[str, Mapping[str, Any]]  # each host's `ports`, by address, and `errors`, if it
    # cannot listen there

    def contacts(
        self, networks: Sequence[Network], pairs: Callable[[int], list[tuple[int, int]]] = pairs
    ) -> dict[str, dict[Pair, Contact]]:
        """Tries which hosts can talk over each network: all pairs at the same time, and again those
        that may have failed because of that."""
        found: dict[Talk, Contact] = {}
        plan: dict[Talk, Network] = {}
        for network in networks:
            ends = [name for name in self.clients if name in network.tried]
            for i, j in pairs(len(ends)):
                talk = network.name, ends[i], ends[j]
                deaf = self.answers[ends[j]]["errors"].get(network.ends[ends[j]].address)
                if deaf is not None:
                    found[talk] = Contact("error", f"{ends[j]}: {deaf}")
                else:
                    plan[talk] = network
        tried = self._try(plan, TIMEOUT)
        found |= tried
        if any(contact.crowded for contact in tried.values()):
            found |= self._try_again({talk: plan[talk] for talk in tried if not tried[talk].ok})
        by_name: dict[str, dict[Pair, Contact]] = {network.name: {} for network in networks}
        for (name, source, target), contact in found.items():
            by_name[name][source, target] = contact
        return by_name

    def _try_again(self, plan: Mapping[Talk, Network]) -> dict[Talk, Contact]:
        """Tries a few at a time, which cannot delay each other; more at a time while all of them
        fail, since then the wire is not the reason, and timeouts take long."""
        found: dict[Talk, Contact] = {}
        left, each = list(plan), 1
        while left:
            now, rest = few(left, each)
            tried = self._try({talk: plan[talk] for talk in now}, _AGAIN)
            passed = {talk: contact for talk, contact in tried.items() if contact.ok}
            if not passed:
                each *= 4
            elif each > 1:
                tried, each = passed, 1
            found |= tried
            left = [*rest, *(talk for talk in now if talk not in tried)]
        return found

    def _try(self, plan: Mapping[Talk, Network], timeout: float) -> dict[Talk, Contact]:
        own = {name: [talk for talk in plan if talk[1] == name] for name in self.clients}

        def probe(client: RpcClient) -> list[Contact]:
            talks = own[client.host.name]
            targets = [self._target(plan[talk], talk[1], talk[2]) for talk in talks]
            answer = client.ask(
                "net-probe", targets=targets, timeout=timeout, patience=_PATIENCE
            ).values["results"]
            return [Contact(**one) for one in answer]

        asked = [client for name, client in self.clients.items() if own[name]]
        found: dict[Talk, Contact] = {}
        for name, contacts in side_by_side(asked, probe).items():
            found.update(zip(own[name], contacts, strict=True))
        return found

    def paces(self, network: Network, rounds: Sequence[Round]) -> dict[Pair, Pace]:
        """Measures how fast the pairs are over one network."""
        return {pair: each[0] for pair, each in self.floods([network], rounds).items()}

    def floods(
        self, networks: Sequence[Network], rounds: Sequence[Round]
    ) -> dict[Pair, list[Pace]]:
        """Measures how fast the pairs are over all of the networks at the same time."""
        names = list(self.clients)
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

            results = side_by_side([self.clients[name] for name in to], flood)
            found.update({(name, to[name]): paces for name, paces in results.items()})
        return found

    def _target(self, network: Network, source: str, target: str) -> dict[str, Any]:
        address = network.ends[target].address
        return {
            "address": address,
            "port": self.answers[target]["ports"][address],
            "token": self.tokens[target],
            "source": network.ends[source].address,
        }


@contextmanager
def _listening(clients: Clients, networks: Sequence[Network], ports: Ports) -> Iterator[Listeners]:
    """Lets all hosts listen at their ends of the networks, until the end of the block."""
    tokens = {name: secrets.token_hex(16) for name in clients}

    def listen(client: RpcClient) -> dict[str, Any]:
        name = client.host.name
        ends = {network.ends[name].address for network in networks if name in network.tried}
        words: dict[str, Any] = {"addresses": sorted(ends), "token": tokens[name], "ports": ports}
        return client.ask("net-listen", **words, patience=_PATIENCE).values

    try:
        answers = side_by_side(list(clients.values()), listen)
        yield Listeners(clients, tokens, answers)
    finally:
        with suppress(ShantyError):  # a host that is lost no longer listens
            side_by_side(
                list(clients.values()), lambda each: each.ask("net-close", patience=_PATIENCE)
            )
