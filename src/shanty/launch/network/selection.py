"""Selects the networks that a run takes: from the cache if they still work, else by measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.finding import Finding
from shanty.launch.network import cache
from shanty.launch.network.diagnosis import CLEARLY, findings, judge
from shanty.launch.network.measure import measure, measure_all, reach
from shanty.launch.network.report import rate_text
from shanty.launch.network.results import Choice, Examined, Measured
from shanty.launch.network.route import Rail, Route
from shanty.launch.network.topology import HostWithNetworks, Network, fingerprint, networks

STRIPED = 1.3  # times as fast: what several networks together have to be
COUNTABLE = 2.5e9  # bytes/s; beyond it the processor is measured, not the cable


class ReachedHost(HostWithNetworks, Protocol):
    """A host that answers."""

    @property
    def client(self) -> RpcClient:
        """Its RPC client."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `decide`.

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
    hosts: Sequence[ReachedHost],
    home: Path,
    say: Callable[[str], None] = lambda _text: None,
    *,
    ports: tuple[int, int] | None = None,
    fresh: bool = False,
) -> Decision:
    """Decides which networks a run over `hosts` takes; never raises for a network's faults.

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
        measured, choice, _age = known
        found = tuple(one for one in choice.findings if one.code != "net-slow")
    else:
        known = None
        examined = _examined(hosts, home, say, ports, measure)
        measured, choice = examined.measured, examined.choice
        found = choice.findings
    return Decision(
        choice.route,
        found,
        measured=known is None,
        seconds=time.monotonic() - began,
        joining=tuple(network.rail for network in measured.networks if measured.joins(network)),
        reason=choice.reason,
    )


def examine(
    hosts: Sequence[ReachedHost],
    home: Path,
    say: Callable[[str], None] = lambda _text: None,
    *,
    ports: tuple[int, int] | None = None,
    fresh: bool = False,
) -> Examined:
    """Measures every network of the hosts, and the speed between every two of them.

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
    return _examined(hosts, home, say, ports, measure_all)


def _examined(
    hosts: Sequence[ReachedHost],
    home: Path,
    say: Callable[[str], None],
    ports: tuple[int, int] | None,
    work: Callable[..., Measured],
) -> Examined:
    began = time.monotonic()
    clients = {host.name: host.client for host in hosts}
    measured = work(clients, networks(hosts), say, ports=ports)
    say("")
    choice = choose(measured, {host.name: host.survey for host in hosts})
    if choice.route.rails:  # what is broken may be mended in the next minute
        cache.save(home, _key(hosts, ports), measured, choice)
    return Examined(measured, choice, 0.0, time.monotonic() - began)


def _unchanged(
    hosts: Sequence[ReachedHost], before: Measured, ports: tuple[int, int] | None
) -> bool:
    """True when over every network the same hosts reach each other as before."""
    tried = [network for network in before.networks if before.contacts.get(network.name)]
    now = reach({host.name: host.client for host in hosts}, tried, ports=ports)
    return all(
        contact.ok == before.contacts[name][pair].ok
        for name, contacts in now.contacts.items()
        for pair, contact in contacts.items()
    )


def _holds(hosts: Sequence[ReachedHost], route: Route, ports: tuple[int, int] | None) -> bool:
    """True when all hosts still reach each other over the route."""
    rails = [Network(f"rail {index}", rail.interfaces) for index, rail in enumerate(route.rails)]
    measured = reach({host.name: host.client for host in hosts}, rails, ports=ports)
    return bool(rails) and all(map(measured.joins, rails))


def _key(hosts: Sequence[ReachedHost], ports: tuple[int, int] | None) -> str:
    return fingerprint(hosts) + (f"-{ports[0]}-{ports[1]}" if ports else "")


def choose(measured: Measured, surveys: Mapping[str, Mapping[str, Any]]) -> Choice:
    """Chooses the best route over what was measured; `surveys` are the hosts', for their MTUs."""
    taken, reason = _best(measured)
    verdicts = {network.name: judge(measured, network, taken) for network in measured.networks}
    found = findings(measured, verdicts, taken, surveys)
    return Choice(Route(tuple(network.rail for network in taken)), verdicts, tuple(found), reason)


def _best(measured: Measured) -> tuple[list[Network], str]:
    serving = measured.serving()
    if not serving:
        return [], "no network joins all hosts"
    paced = [network for network in serving if network.name in measured.paces]
    ssh = next((network for network in serving if measured.by_ssh(network)), None)
    if not paced or len(serving) == 1:
        return [ssh or serving[0]], "the only one that joins all hosts"
    striped, total = _striped(measured, paced)
    if striped:
        alone = rate_text(measured.rate(striped[0].name))
        return striped, f"{rate_text(total)} together, {alone} at most alone"
    best = max(paced, key=lambda network: _worth(measured, network))
    if ssh in paced and _worth(measured, best) < CLEARLY * _worth(measured, ssh):
        return [ssh], "ssh takes it, and none is clearly faster"
    return [best], f"the fastest: {rate_text(measured.rate(best.name))} between the slowest two"


def _worth(measured: Measured, network: Network) -> float:
    """Estimates the speed of a network in bytes/s: beyond what can be counted, by what the kernel
    says of its slowest cable."""
    rate = measured.rate(network.name)
    return rate if rate < COUNTABLE else max(COUNTABLE, min(network.speeds.values(), default=0.0))


def _striped(measured: Measured, paced: Sequence[Network]) -> tuple[list[Network], float]:
    """Returns networks that carry more together, the fastest first, and their sum in bytes/s."""
    by_name = {network.name: network for network in paced}
    alone = max(map(measured.rate, by_name))
    for names, pairs in measured.together.items():
        # an MPI deals evenly, so the slowest one sets the pace of all
        total = min((len(names) * min(rates) for rates in pairs.values()), default=0.0)
        if set(names) <= set(by_name) and alone < COUNTABLE and total >= STRIPED * alone > 0:
            order = sorted(names, key=measured.rate, reverse=True)
            return [by_name[name] for name in order], total
    return [], 0.0
