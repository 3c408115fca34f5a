"""The networks that a run takes: from the cache if they still work, else measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.finding import Finding
from shanty.launch.network import cache
from shanty.launch.network.choose import Choice, choose
from shanty.launch.network.measure import Measured, measure, measure_all, reach
from shanty.launch.network.route import Rail, Route
from shanty.launch.network.topology import Network, Placed, fingerprint, networks


class Reached(Placed, Protocol):
    """A host that answers; `targets.site.Member` is one."""

    @property
    def client(self) -> RpcClient:
        """Who is asked there."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What `decide` came to.

    `route` is empty where there is nothing to choose (one host) and where no network joins all
    hosts; then `findings` has an ERROR that says why. `measured` is false where the cache knew
    and a look showed that it still holds; how fast it is was not looked at, so nothing is found to
    be slow then. `seconds` is what it took. `joining` are all networks that joined all hosts when
    it was measured, `reason` says why this route in a few words.
    """

    route: Route
    findings: tuple[Finding, ...] = ()
    measured: bool = False
    seconds: float = 0.0
    joining: tuple[Rail, ...] = ()
    reason: str = ""


def decide(
    hosts: Sequence[Reached],
    home: Path,
    say: Callable[[str], None] = lambda _text: None,
    *,
    ports: tuple[int, int] | None = None,
    fresh: bool = False,
) -> Decision:
    """Which networks a run over `hosts` takes; never raises for what is wrong with a network.

    `home` is shanty's folder here, which has the cache; `say` hears what is being done, "" at
    the end. `ports` is the first and the last of the TCP ports that the user allows between the
    hosts, None where the system chooses. `fresh` asks for a measurement whatever the cache has:
    a network that has become slow still works. PrepareError when a host is lost meanwhile.
    """
    began = time.monotonic()
    if len(hosts) < 2:
        return Decision(Route())
    known = None if fresh else cache.load(home, _key(hosts, ports))
    if known is not None and _holds(hosts, known[1].route, ports):
        return _decision(known[0], known[1], began, cached=True)
    examined = _examined(hosts, home, say, ports, measure)
    say("")
    return _decision(examined.measured, examined.choice, began, cached=False)


def _decision(measured: Measured, choice: Choice, began: float, *, cached: bool) -> Decision:
    joining = tuple(network.rail for network in measured.networks if measured.joins(network))
    return Decision(
        choice.route,
        tuple(one for one in choice.findings if not (cached and one.code == "net-slow")),
        measured=not cached,
        seconds=time.monotonic() - began,
        joining=joining,
        reason=choice.reason,
    )


@dataclass(frozen=True, slots=True)
class Examined:
    """All that was measured, what was chosen, how old that is, and what it took, in seconds."""

    measured: Measured
    choice: Choice
    age: float = 0.0
    seconds: float = 0.0


def examine(
    hosts: Sequence[Reached],
    home: Path,
    say: Callable[[str], None] = lambda _text: None,
    *,
    ports: tuple[int, int] | None = None,
    fresh: bool = False,
) -> Examined:
    """Every network of the hosts, and the speed between every two of them.

    From the cache where that has it all, and where a look shows that the same hosts reach each
    other, unless it has to be `fresh`; a run then knows it too.
    """
    if len(hosts) < 2:
        names = tuple(host.name for host in hosts)
        return Examined(Measured(names, ()), Choice(Route(), {}, ()))
    known = None if fresh else cache.load(home, _key(hosts, ports))
    if known is not None and known[0].whole and _unchanged(hosts, known[0], ports):
        measured, choice, age = known
        return Examined(measured, choice, age)
    examined = _examined(hosts, home, say, ports, measure_all)
    say("")
    return examined


def _examined(
    hosts: Sequence[Reached],
    home: Path,
    say: Callable[[str], None],
    ports: tuple[int, int] | None,
    work: Callable[..., Measured],
) -> Examined:
    began = time.monotonic()
    clients = {host.name: host.client for host in hosts}
    measured = work(clients, networks(hosts), say, ports=ports)
    choice = choose(measured, {host.name: host.survey for host in hosts})
    if choice.route.rails:  # what is broken may be mended in the next minute
        cache.save(home, _key(hosts, ports), measured, choice)
    return Examined(measured, choice, 0.0, time.monotonic() - began)


def _unchanged(hosts: Sequence[Reached], before: Measured, ports: tuple[int, int] | None) -> bool:
    """True when over every network the same hosts reach each other as before."""
    tried = [network for network in before.networks if before.contacts.get(network.name)]
    now = reach({host.name: host.client for host in hosts}, tried, ports=ports)
    return all(
        contact.ok == before.contacts[name][pair].ok
        for name, contacts in now.contacts.items()
        for pair, contact in contacts.items()
    )


def _holds(hosts: Sequence[Reached], route: Route, ports: tuple[int, int] | None) -> bool:
    """True when all hosts still reach each other over the route."""
    rails = [Network(f"rail {index}", rail.interfaces) for index, rail in enumerate(route.rails)]
    measured = reach({host.name: host.client for host in hosts}, rails, ports=ports)
    return bool(rails) and all(map(measured.joins, rails))


def _key(hosts: Sequence[Reached], ports: tuple[int, int] | None) -> str:
    return fingerprint(hosts) + (f"-{ports[0]}-{ports[1]}" if ports else "")
