"""Reports measured networks: in words, and as JSON for programs (`shanty net --json`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shanty.launch.network.results import Choice, Contact, Measured, Pair
from shanty.launch.network.topology import Interface, Network, SurveyedHost, usable

_MOST = 6  # of several things that are named
SEEN = {  # by the kind of a contact
    "ok": "reached",
    "no-answer": "no answer",
    "refused": "connection refused",
    "unreachable": "rejected, or no way there",
    "silent": "a connection, and then nothing",
    "wrong-host": "another host answers",
    "large-lost": "small packets pass, large ones vanish",
    "large-lost-back": "small packets pass, large ones vanish on the way back",
    "error": "cannot be tried",
}


def rate_text(rate: float) -> str:
    """Returns a rate in the units of networks: 94 Mbit/s, 9.4 Gbit/s."""
    bits = rate * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.0f} bit/s"


def kinds_text(contacts: Iterable[Contact]) -> str:
    """Names the results, each once."""
    said = (
        f"{SEEN[one.kind]}{f' ({one.text})' if one.kind == 'error' else ''}" for one in contacts
    )
    return ", ".join(dict.fromkeys(said))


def pairs_text(pairs: Iterable[Pair]) -> str:
    """Names the first few of the pairs: a → b, b → c."""
    return _first([f"{source} → {target}" for source, target in pairs])


def names_text(measured: Measured, hosts: Iterable[str]) -> str:
    """Names the hosts, in the order of the run; the first few of many."""
    wanted = set(hosts)
    names = [name for name in measured.hosts if name in wanted]
    if len(names) == len(measured.hosts) > 2:
        return "all hosts"
    return _first(names)


def _first(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more


def time_text(seconds: float) -> str:
    """Returns a short time as text: 45 µs, 1.2 ms."""
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def as_json(hosts: Sequence[SurveyedHost], measured: Measured, choice: Choice) -> dict[str, Any]:
    """Returns everything as plain JSON, in bytes/s and seconds; null where it is not known."""
    return {
        "hosts": [
            {"name": host.name, "address": host.address, "interfaces": interfaces(host.survey)}
            for host in hosts
        ],
        "networks": [
            {
                "name": network.name,
                "verdict": choice.verdicts[network.name].kind,
                "text": choice.verdicts[network.name].text,
                "ssh": network.ssh,
                "hosts": _ends(network.ends),
                "pairs": _pairs(measured, network),
            }
            for network in measured.networks
        ],
        "together": [
            {
                "networks": list(names),
                "pairs": [
                    {"from": a, "to": b, "rates": list(rates)} for (a, b), rates in each.items()
                ],
            }
            for names, each in measured.together.items()
        ],
        "route": [_ends(rail.interfaces) for rail in choice.route.rails],
        "reason": choice.route.reason,
        "findings": [finding.to_json() for finding in choice.findings],
        "age": choice.age or 0.0,
        "seconds": choice.seconds if choice.age is None else 0.0,
    }


def interfaces(survey: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a host's interfaces that may lead to others; `speed` is as the kernel says."""
    links = survey.get("links", {})
    found = []
    for entry in usable(survey["addresses"]):
        link = links.get(entry["interface"], {})
        end = Interface(entry["interface"], entry["address"], entry["prefix"])
        found.append(
            {
                **_end(end),
                "network": end.network,
                "carries": entry["up"],
                "speed": link["speed"] * 125e3 if link.get("speed") else None,
                "mtu": link.get("mtu") or None,
                "kind": link.get("kind", ""),
            }
        )
    return found


def _ends(ends: Mapping[str, Interface]) -> dict[str, Any]:
    return {host: _end(end) for host, end in ends.items()}


def _end(end: Interface) -> dict[str, Any]:
    return {"interface": end.name, "address": end.address, "prefix": end.prefix}


def _pairs(measured: Measured, network: Network) -> list[dict[str, Any]]:
    found = []
    for (source, target), contact in measured.contacts.get(network.name, {}).items():
        pace = measured.paces.get(network.name, {}).get((source, target))
        found.append(
            {
                "from": source,
                "to": target,
                "contact": contact.kind,
                "via": contact.via,
                "rate": pace.rate if pace else None,
                "latency": pace.latency if pace else None,
            }
        )
    return found
