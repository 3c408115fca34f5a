"""Classifies networks, and finds the host at fault when a network does not join all hosts."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shanty.launch.finding import Finding, Level
from shanty.launch.network.report import kinds_text, names_text, pairs_text, rate_text
from shanty.launch.network.topology import Contact, Measured, Network, Pair, Surveys, Verdict

CLEARLY = 1.25  # times as fast as ssh's network has another network to be
SLOW = 37.5e6  # bytes/s, 300 Mbit/s; below that is a warning
_UNLIKE = 4.0  # times as slow as the ends of other hosts: an interface that fell back
_LARGE = ("large-lost", "large-lost-back")
_KEPT_OFF = "nothing: runs do not use it"
_SAME_MTU = (
    "check that all interfaces and switches on the way have the same MTU, and that firewalls "
    "let large packets and ICMP pass"
)
_LOOK_AT = "check cables, switch ports and radio; `shanty net` measures every pair"
_FIREWALL = (
    "allow TCP connections from the other hosts on the ports 1024-65535, or limit the MPI to "
    "ports that are open (docs/concepts/network.md)"
)


def judge(measured: Measured, network: Network, taken: Sequence[Network]) -> Verdict:
    """Classifies one network; `taken` are those that the run takes."""
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
    failed = measured.failed(network)
    if not failed:
        lack = [name for name in measured.hosts if name not in network.ends]
        return Verdict("partial", f"not on {names_text(measured, lack)}")
    if len(failed) == len(contacts) and not _lost(failed) and not network.ssh:
        return Verdict("dead", f"no host reaches another: {kinds_text(failed.values())}")
    if _lost(failed):
        return Verdict("black-hole", f"large packets vanish ({pairs_text(_lost(failed))})")
    if all((b, a) in contacts and contacts[b, a].ok for a, b in failed):
        return Verdict("half-open", f"one direction is blocked ({pairs_text(failed)})")
    return Verdict("blocked", f"{kinds_text(failed.values())} ({pairs_text(failed)})")


def findings(
    measured: Measured, verdicts: Mapping[str, Verdict], taken: Sequence[Network], surveys: Surveys
) -> list[Finding]:
    """Finds all faults of networks. If a network can be taken, they are notes; otherwise the
    faults of the network that most likely should work are errors."""
    should = None if taken else _broken(measured, verdicts)
    found = []
    for network in measured.networks:
        if not measured.joins(network):
            level = Level.ERROR if network is should else Level.NOTE
            found += _about(measured, network, verdicts[network.name], surveys, level)
    if taken:
        return found + _slow(measured, taken[0])
    if should is None:
        seen = [f"{network.name}: {verdicts[network.name].text}" for network in measured.networks]
        found.append(
            Finding(
                "net-none",
                Level.ERROR,
                "",
                "no network joins all hosts",
                "; ".join(seen) or "they have no network in common",
                "connect them to one network, or use other hosts",
            )
        )
    return found


def _broken(measured: Measured, verdicts: Mapping[str, Verdict]) -> Network | None:
    """Returns the network that should join all hosts and does not.

    None if no network should, or if several are broken in different places.
    """
    likely = [
        network
        for network in measured.networks
        if verdicts[network.name].kind in ("blocked", "half-open", "black-hole")
        and set(network.tried) == set(measured.hosts)
    ]
    where = [
        {one.host for one in _culprits(measured.failed(each), measured.contacts[each.name])}
        for each in likely
    ]
    return likely[0] if likely and where.count(where[0]) == len(where) else None


def _about(
    measured: Measured, network: Network, verdict: Verdict, surveys: Surveys, level: Level
) -> list[Finding]:
    if verdict.kind == "isolated":
        hosts = [name for name in measured.hosts if name in network.doubled]
        end = network.ends[hosts[0]]
        what = f"{end.name} is a separate network inside each host"
        seen = f"{end.address} is the address of {names_text(measured, hosts)}"
        return [Finding("net-isolated", Level.NOTE, "", what, seen, _KEPT_OFF)]
    if verdict.kind == "dead":
        gone = network.down or frozenset(network.ends)
        if gone == frozenset(network.ends) and len(gone) > 1:
            return [_dead(network, "", verdict.text)]
        return [_dead(network, name, verdict.text) for name in measured.hosts if name in gone]
    contacts = measured.contacts.get(network.name, {})
    failed = measured.failed(network)
    shut = {pair: one for pair, one in failed.items() if one.kind not in _LARGE}
    lost = _culprits(_lost(failed), contacts)
    found = [_black_hole(network, one, surveys, level) for one in lost]
    for one in _culprits(shut, contacts):
        seen = f"{kinds_text(shut[pair] for pair in one.pairs)} ({pairs_text(one.pairs)})"
        if level is Level.NOTE and one.way == "to and from":
            found.append(_dead(network, one.host, seen))
            continue
        back = [(b, a) for a, b in one.pairs if (b, a) in contacts and contacts[b, a].ok]
        other = f", while {pairs_text(back)} works" if back else ""
        found.append(
            Finding(
                "port-blocked",
                level,
                one.host,
                f"connections {one.where} on the ports that MPI uses are blocked",
                f"{network.name}: {seen}{other}",
                f"on {one.host or 'all hosts'}: {_FIREWALL}",
            )
        )
    return found


def _dead(network: Network, host: str, seen: str) -> Finding:
    names = dict.fromkeys(end.name for name, end in network.ends.items() if host in ("", name))
    what = f"{' and '.join(names)} leads to no other host"
    return Finding("net-dead", Level.NOTE, host, what, f"{network.name}: {seen}", _KEPT_OFF)


def _black_hole(network: Network, culprit: _Culprit, surveys: Surveys, level: Level) -> Finding:
    mtus = {
        name: surveys.get(name, {}).get("links", {}).get(end.name, {}).get("mtu", 0)
        for name, end in network.ends.items()
    }
    known = {mtu for mtu in mtus.values() if mtu}
    listed = ", ".join(f"{name} {mtu}" for name, mtu in mtus.items() if mtu)
    fix, command = _SAME_MTU, ""
    if len(known) > 1:
        fix = f"set the same MTU on all hosts, {min(known)} for instance"
        if culprit.host:
            name = network.ends[culprit.host].name
            command = f"sudo ip link set dev {name} mtu {min(known)}"
    return Finding(
        "mtu-blackhole",
        level,
        culprit.host,
        f"large packets {culprit.where} vanish",
        f"{network.name}: single bytes arrive, 64 KiB do not ({pairs_text(culprit.pairs)})"
        + (f"; MTU of the interfaces: {listed}" if listed else ""),
        fix,
        command,
    )


def _slow(measured: Measured, network: Network) -> list[Finding]:
    def slow(host: str, what: str, seen: str) -> Finding:
        seen = f"{network.name}: {seen}"
        return Finding("net-slow", Level.WARNING, host, f"{what} is slow", seen, _LOOK_AT)

    paces = measured.paces.get(network.name, {})
    rates = {pair: pace.rate for pair, pace in paces.items() if pace.rate < SLOW}
    if len(rates) == len(paces) > 0:  # all are slow; are some much slower?
        usual = statistics.median(rates.values())
        rates = {pair: rate for pair, rate in rates.items() if rate * _UNLIKE <= usual} or rates
    found = []
    for culprit in _culprits(rates, paces):
        worst = min(culprit.pairs, key=lambda pair: rates[pair])
        seen = f"{rate_text(rates[worst])} from {worst[0]} to {worst[1]}"
        found.append(slow(culprit.host, f"data {culprit.where}", seen))
    if found or not network.speeds:
        return found
    usual = statistics.median(network.speeds.values())
    return [
        slow(
            name,
            f"the link of {name}",
            f"the link of {network.ends[name].name} runs at {rate_text(network.speeds[name])}, "
            f"those of the other hosts at {rate_text(usual)}",
        )
        for name in measured.hosts
        if network.speeds.get(name, usual) * _UNLIKE <= usual
    ]


class _Culprit(NamedTuple):
    """The host that explains the failures between `pairs`; "" for all hosts.

    `way` is "to", "from", "to and from" the host, or "between" all.
    """

    host: str
    way: str
    pairs: Sequence[Pair]

    @property
    def where(self) -> str:
        """As text: to lab2."""
        return f"{self.way} {self.host}" if self.host else "between all hosts"


def _culprits(failed: Collection[Pair], tried: Collection[Pair]) -> list[_Culprit]:
    """Returns the hosts that explain the failed pairs, as few as possible.

    A host for which nothing works is a cause of its own; then follow hosts that no other host
    reaches, then hosts that reach no other. For a single pair it is the target: firewalls block
    incoming connections.
    """
    left = list(failed)
    if len(left) == len(tried) > 0:
        return [_Culprit("", "between", left)]
    found = []
    hosts = list(dict.fromkeys(name for pair in tried for name in pair))
    for name in hosts:
        own = [pair for pair in tried if name in pair]
        if len(own) > 2 and all(pair in failed for pair in own):
            found.append(_Culprit(name, "to and from", [pair for pair in left if name in pair]))
            left = [pair for pair in left if name not in pair]
    while left:
        _count, side, order = max(
            (sum(pair[side] == name for pair in left), side, -order)
            for order, name in enumerate(hosts)
            for side in (1, 0)
        )
        name = hosts[-order]
        mine = [pair for pair in left if pair[side] == name]
        found.append(_Culprit(name, "to" if side else "from", mine))
        left = [pair for pair in left if pair not in mine]
    return [each for each in found if each.pairs]


def _lost(failed: Mapping[Pair, Contact]) -> list[Pair]:
    large = [(pair, one.kind) for pair, one in failed.items() if one.kind in _LARGE]
    return list(dict.fromkeys((a, b) if kind == _LARGE[0] else (b, a) for (a, b), kind in large))
