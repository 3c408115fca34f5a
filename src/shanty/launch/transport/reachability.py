"""Finds the addresses at which the lead host of a run reaches the other hosts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shanty.launch.transport import connect, keys
from shanty.launch.transport.openssh import resolved
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.site import Host

_REACH = 4.0  # seconds for the lead host to reach another host
_LATE = 5.0  # additional seconds for its answer
_NONE = {"address": "", "peer": "", "port": 0, "source": "", "banner": ""}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of the lead host to reach a host.

    `found` is the result of the verb `find-ssh`, None if it does not reach the host. `places` are
    the places that were tried, `[address, port]` each; `tried` has the results in words.
    """

    found: Mapping[str, Any] | None
    places: Sequence[Sequence[Any]]
    tried: str


def distinct(hosts: Sequence[Host], surveys: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks that no two hosts are the same machine; UsageError if they are."""
    by_instance: dict[str, str] = {}
    for host in hosts:
        survey = surveys[host.name]
        other = by_instance.setdefault(survey["instance"], host.name)
        if other != host.name:
            raise UsageError(
                f"{other} and {host.name} are the same machine",
                f"both report the host name {survey['hostname']}",
                f"name it once, with the sum of its slots: {other}:N",
            )


def to_hosts(
    hosts: Sequence[Host], lead: RpcClient, surveys: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns how the lead, the first host, reaches each host: results of the verb `find-ssh`.

    The lead's own entry is empty. PrepareError names the hosts that it does not reach.
    """
    found = tried(hosts, lead, surveys, _REACH)
    failed = [(host.name, found[host.name]) for host in hosts[1:] if not found[host.name].found]
    if failed:
        raise PrepareError(
            f"the lead host {hosts[0].name} does not reach "
            + ", ".join(name for name, _ in failed),
            "; ".join(way.tried for _, way in failed),
            "open its ssh port for the lead host, or put another host first in --on, which is then "
            "the lead host",
        )
    ways = [_by_ipv4(lead, way.found, way.places) for way in found.values() if way.found]
    return [dict(_NONE), *ways]


def tried(
    hosts: Sequence[Host], lead: RpcClient, surveys: Mapping[str, Mapping[str, Any]], timeout: float
) -> dict[str, Attempt]:
    """Tries how the lead, the first host, reaches the others, all at once; by their names.

    It takes 1.5 times `timeout` seconds if a host does not answer.
    """
    own = addresses(surveys[hosts[0].name])
    places = [candidates(host, surveys[host.name], own) for host in hosts[1:]]
    if not places:
        return {}
    found = {}
    for host, group, answer in zip(
        hosts[1:], places, _find_ssh(lead, places, timeout), strict=True
    ):
        results = ", ".join(
            f"{address} port {port}: {error}"
            for (address, port), error in zip(group, answer["errors"], strict=True)
        )
        found[host.name] = Attempt(answer["found"], group, results)
    return found


def _find_ssh(
    lead: RpcClient, groups: Sequence[Sequence[Sequence[Any]]], timeout: float
) -> list[dict[str, Any]]:
    asked = lead.ask("find-ssh", groups=groups, timeout=timeout, patience=timeout + _LATE)
    answers: list[dict[str, Any]] = asked.values["answers"]
    return answers


def known_lines(host: Host, client: RpcClient, pattern: str) -> list[str]:
    """Returns lines of a known_hosts file for a host, under the name `pattern`.

    The keys are those by which ssh knows it here, else those that the host itself reports, over a
    connection on which it was verified, or locally. Where the user lets ssh accept any key
    (StrictHostKeyChecking no), a known one may be out of date, and only the latter count.
    """
    here = connect.is_here(host)
    settings = {"hostname": "localhost"} if here else resolved(host)
    lines = [] if here else keys.known_hosts_lines(settings, pattern)
    if not lines or keys.accepts_any(settings):
        found = client.ask("host-keys").values["keys"]
        lines = keys.known_hosts_lines(settings, pattern, found)
    return lines


def _by_ipv4(
    lead: RpcClient, found: Mapping[str, Any], places: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Returns the same host by an IPv4 address if it has one, since most MPIs need that."""
    plain = [place for place in places if ":" not in place[0]]
    if ":" in found["peer"] and plain:
        answer = _find_ssh(lead, [plain], _REACH)[0]["found"]
        if answer and ":" not in answer["peer"]:
            return dict(answer)
    return dict(found)


def candidates(host: Host, survey: Mapping[str, Any], own: Collection[str] = ()) -> list[list[Any]]:
    """Returns where the lead host may find a host's sshd, most likely first: `[address, port]`.

    Addresses that the lead has as well (`own`, of virtual networks) are left out.
    """
    found: list[list[Any]] = []
    port = 22
    if not connect.is_here(host):
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
    """Returns a host's addresses, without loopback and link-local ones."""
    return [
        entry["address"]
        for entry in survey["addresses"]
        if not entry["address"].startswith(("127.", "::1", "fe80"))
    ]


def own_address(survey: Mapping[str, Any]) -> str:
    """Returns an address at which a host reaches itself."""
    return next(iter(addresses(survey)), "127.0.0.1")
