"""Decides by what was measured: which networks a run takes, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shanty.launch.finding import Finding
from shanty.launch.network.diagnosis import Verdict, findings, lost
from shanty.launch.network.measure import Measured
from shanty.launch.network.route import Route
from shanty.launch.network.topology import Network
from shanty.launch.network.words import kinds_text, names_text, pairs_text, rate_text

CLEARLY = 1.25  # times as fast: what another network than ssh's has to be
STRIPED = 1.3  # times as fast: what several networks together have to be
COUNTABLE = 2.5e9  # bytes/s; beyond it the processor is measured, not the cable


@dataclass(frozen=True, slots=True)
class Choice:
    """The route, what is thought of each network (by name), what is wrong, and why this route."""

    route: Route
    verdicts: Mapping[str, Verdict]
    findings: tuple[Finding, ...]
    reason: str = ""


def choose(measured: Measured, surveys: Mapping[str, Mapping[str, Any]]) -> Choice:
    """The best route over what was measured; `surveys` are the hosts', for their MTUs."""
    taken, reason = _best(measured)
    verdicts = {network.name: _verdict(measured, network, taken) for network in measured.networks}
    found = findings(measured, verdicts, taken, surveys)
    return Choice(Route(tuple(network.rail for network in taken)), verdicts, tuple(found), reason)


# ----------------------------------------------------------------------------------- the route


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
    """How fast a network is taken to be, in bytes/s: beyond what can be counted, by what the
    kernel says of its slowest cable."""
    rate = measured.rate(network.name)
    return rate if rate < COUNTABLE else max(COUNTABLE, min(network.speeds.values(), default=0.0))


def _striped(measured: Measured, paced: Sequence[Network]) -> tuple[list[Network], float]:
    """The networks that carry more together, the fastest first, and how much, in bytes/s."""
    by_name = {network.name: network for network in paced}
    alone = max(map(measured.rate, by_name))
    for names, pairs in measured.together.items():
        # an MPI deals evenly, so the slowest one sets the pace of all
        total = min((len(names) * min(rates) for rates in pairs.values()), default=0.0)
        if set(names) <= set(by_name) and alone < COUNTABLE and total >= STRIPED * alone > 0:
            order = sorted(names, key=measured.rate, reverse=True)
            return [by_name[name] for name in order], total
    return [], 0.0


# --------------------------------------------------------------------------- what is thought of it


def _verdict(measured: Measured, network: Network, taken: Sequence[Network]) -> Verdict:
    if network in taken:
        return Verdict("chosen", "the run takes it")
    if measured.joins(network):
        rate = measured.rate(network.name)
        best = measured.rate(taken[0].name) if taken else 0.0
        if rate and best >= CLEARLY * rate:
            return Verdict("slow", f"joins all hosts, at {rate_text(rate)}")
        return Verdict("joins", "joins all hosts")
    if network.doubled:
        names = names_text(measured, network.doubled)
        return Verdict("isolated", f"the same address on {names}")
    if network.down:
        return Verdict("dead", f"carries nothing on {names_text(measured, network.down)}")
    contacts = measured.contacts.get(network.name, {})
    failed = {pair: one for pair, one in contacts.items() if not one.ok}
    if not failed:
        lack = [name for name in measured.hosts if name not in network.ends]
        return Verdict("partial", f"not on {names_text(measured, lack)}")
    if len(failed) == len(contacts) and not lost(failed) and not network.ssh:
        return Verdict("dead", f"nobody reaches anybody: {kinds_text(failed.values())}")
    if lost(failed):
        return Verdict("black-hole", f"large packets vanish ({pairs_text(lost(failed))})")
    if all((b, a) in contacts and contacts[b, a].ok for a, b in failed):
        return Verdict("half-open", f"one direction is blocked ({pairs_text(failed)})")
    return Verdict("blocked", f"{kinds_text(failed.values())} ({pairs_text(failed)})")
