"""How the lead host of a run gets to the other hosts, and by which addresses they are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shanty.carry.errors import PrepareError
from shanty.launch.site import contact
from shanty.launch.site.host import Host
from shanty.launch.site.porter import Porter
from shanty.launch.transport.openssh import resolved

_REACH = 4.0  # seconds for the lead host to get through to another one
_NONE = {"address": "", "peer": "", "port": 0, "source": "", "banner": ""}


def to_hosts(
    hosts: Sequence[Host], lead: Porter, surveys: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """How the lead, the first host, gets to each of them, as the verb `reach` tells it.

    The lead's own entry is empty. PrepareError names the hosts that it does not get to.
    """
    ways: list[dict[str, Any]] = [dict(_NONE)]
    failed = []
    own = addresses(surveys[hosts[0].name])
    for host in hosts[1:]:
        places = candidates(host, surveys[host.name], own)
        answer = lead.ask("reach", candidates=places, timeout=_REACH).values
        if answer["found"]:
            ways.append(_by_ipv4(lead, answer["found"], places))
        else:
            tried = ", ".join(
                f"{address} port {port}: {error}"
                for (address, port), error in zip(places, answer["errors"], strict=True)
            )
            failed.append((host.name, tried))
    if failed:
        raise PrepareError(
            f"the lead host {hosts[0].name} does not reach "
            + ", ".join(name for name, _ in failed),
            "; ".join(tried for _, tried in failed),
            "its ssh port must be open from the lead host; another host first in --on is "
            "another lead",
        )
    return ways


def _by_ipv4(
    lead: Porter, found: Mapping[str, Any], places: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """The same host by an IPv4 address where it has one: only Open MPI 5 takes others."""
    plain = [place for place in places if ":" not in place[0]]
    if ":" in found["peer"] and plain:
        answer = lead.ask("reach", candidates=plain, timeout=_REACH).values["found"]
        if answer and ":" not in answer["peer"]:
            return dict(answer)
    return dict(found)


def candidates(host: Host, survey: Mapping[str, Any], own: Collection[str] = ()) -> list[list[Any]]:
    """Where the lead host may find a host's sshd, the likeliest first: `[address, port]`.

    An address that is among the lead's `own` as well (a virtual network's) leads back to it.
    """
    found: list[list[Any]] = []
    port = 22
    if not contact.is_here(host):
        settings = resolved(host)
        port = int(settings.get("port", 22))
        found.append([settings.get("hostname", host.name), port])
    connection = survey.get("ssh")
    if connection:
        found.append([connection["server"], connection["server_port"]])
        port = connection["server_port"]
    found += [[address, port] for address in addresses(survey)]
    found = [place for place in found if place[0] not in own]
    return [place for index, place in enumerate(found) if place not in found[:index]]


def addresses(survey: Mapping[str, Any]) -> list[str]:
    """A host's addresses, without those that lead nowhere else."""
    return [
        entry["address"]
        for entry in survey["addresses"]
        if not entry["address"].startswith(("127.", "::1", "fe80"))
    ]


def own_address(survey: Mapping[str, Any]) -> str:
    """By what a single host is known to itself."""
    return next(iter(addresses(survey)), "127.0.0.1")
