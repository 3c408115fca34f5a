"""Finds the hosts that a user names, connects to them, and asks each for its survey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shanty.launch import inventory
from shanty.launch.network.topology import SurveyedHost, Surveys
from shanty.launch.transport import connect, reachability
from shanty.launch.transport.parallel import side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.site import Host


def chosen(on: str | None, hostfile: str | None, home: Path) -> tuple[Host, ...]:
    """Returns the named hosts; UsageError for none, or for a name that is given twice."""
    if on and hostfile:
        raise UsageError("hosts and a host file are both given", fix="give one of them")
    if not (on or hostfile):
        raise UsageError("no hosts are given", fix="name them: a,b,c, a group, or --hostfile FILE")
    hosts = (
        inventory.read_hostfile(Path(hostfile)) if hostfile else inventory.resolve(on or "", home)
    )
    hosts = inventory.recognised(hosts, home)
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{name} is named more than once, with another user or port",
                "hosts are identified by their names",
                "give each a different name in ~/.ssh/config (Host, HostName, Port, User)",
            )
    return hosts


def connected(
    hosts: Sequence[Host], home: Path, say: Callable[[str], None], *, terminal: bool
) -> list[RpcClient]:
    """Connects to all hosts; PrepareError names those that fail."""
    return connect.connect(
        hosts,
        terminal=terminal,
        progress=lambda host, text: say(f"{host.name}: {text}"),
        groups=inventory.names(home),
    )


def survey(
    hosts: Sequence[Host], home: Path, say: Callable[[str], None], *, terminal: bool
) -> list[SurveyedHost]:
    """Connects to all hosts and asks for their surveys; PrepareError names those that fail."""
    clients = connected(hosts, home, say, terminal=terminal)
    surveys = side_by_side(clients, lambda client: client.ask("survey").values)
    reachability.distinct(hosts, surveys)
    return addressed(clients, surveys)


def addressed(
    clients: Sequence[RpcClient], surveys: Surveys, *, blocked: bool = False
) -> list[SurveyedHost]:
    """Returns the hosts with the addresses at which the lead host's ssh finds them; if it is
    `blocked`, or does not find all, with those at which this machine's ssh finds them."""
    found = [(surveys[client.host.name]["ssh"] or {}).get("server", "") for client in clients]
    if not blocked:
        try:
            ways = reachability.to_hosts([each.host for each in clients], clients[0], surveys)
            own = next((way["source"] for way in ways[1:]), "")
            found = [own, *(way["peer"] for way in ways[1:])]
        except PrepareError:
            pass
    return [
        SurveyedHost(each.host.name, each, own, address or reachability.own_address(own))
        for each, address in zip(clients, found, strict=True)
        for own in [surveys[each.host.name]]
    ]
