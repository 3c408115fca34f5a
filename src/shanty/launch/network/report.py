"""What was found out about the networks of hosts, for programs: `shanty net --json`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from shanty.launch.network.decide import Examined, Reached
from shanty.launch.network.measure import Measured, Pair
from shanty.launch.network.route import Interface
from shanty.launch.network.topology import Network, usable


def as_json(hosts: Sequence[Reached], examined: Examined) -> dict[str, Any]:
    """All of it as plain JSON: rates are in bytes/s, link speeds in bytes/s, times in seconds.

    What was not measured or is not known is null.
    """
    measured, choice = examined.measured, examined.choice
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
                    {"from": pair[0], "to": pair[1], "rates": list(rates)}
                    for pair, rates in each.items()
                ],
            }
            for names, each in measured.together.items()
        ],
        "route": [_ends(rail.interfaces) for rail in choice.route.rails],
        "reason": choice.reason,
        "findings": [finding.to_json() for finding in choice.findings],
        "age": examined.age,
        "seconds": examined.seconds,
    }


def interfaces(survey: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A host's ends that may lead to others; `speed` is what the kernel says of the link."""
    links = survey.get("links", {})
    found = []
    for entry in usable(survey["addresses"]):
        link = links.get(entry["interface"], {})
        network = ipaddress.ip_interface(f"{entry['address']}/{entry['prefix']}").network
        found.append(
            {
                "interface": entry["interface"],
                "address": entry["address"],
                "prefix": entry["prefix"],
                "network": str(network),
                "carries": entry["up"],
                "speed": link["speed"] * 125e3 if link.get("speed") else None,
                "mtu": link.get("mtu") or None,
                "kind": link.get("kind", ""),
            }
        )
    return found


def _ends(ends: Mapping[str, Interface]) -> dict[str, Any]:
    return {
        host: {"interface": end.name, "address": end.address, "prefix": end.prefix}
        for host, end in ends.items()
    }


def _pairs(measured: Measured, network: Network) -> list[dict[str, Any]]:
    contacts = measured.contacts.get(network.name, {})
    paces = measured.paces.get(network.name, {})

    def pair(ends: Pair) -> dict[str, Any]:
        contact, pace = contacts[ends], paces.get(ends)
        return {
            "from": ends[0],
            "to": ends[1],
            "contact": contact.kind,
            "via": contact.via,
            "rate": pace.rate if pace else None,
            "latency": pace.latency if pace else None,
        }

    return [pair(ends) for ends in contacts]
