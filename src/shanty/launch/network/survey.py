"""Connects to hosts to look at their networks, when no run is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.cluster import connect, inventory, reachability
from shanty.launch.cluster.parallel import side_by_side
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.host import Host
from shanty.runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """A host that answers, as `decide` and `examine` take it."""

    name: str
    client: RpcClient
    survey: Mapping[str, Any]
    address: str


def chosen(on: str | None, hostfile: str | None, home: Path) -> tuple[Host, ...]:
    """Returns the hosts that are meant; UsageError when none is, or one twice."""
    if on and hostfile:
        raise UsageError("hosts and a host file are both given", fix="give one of them")
    if not (on or hostfile):
        raise UsageError("no hosts are given", fix="name them: a,b,c, a group, or --hostfile FILE")
    hosts = (
        inventory.read_hostfile(Path(hostfile)) if hostfile else inventory.resolve(on or "", home)
    )
    hosts = inventory.recognised(hosts, home)
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UsageError("a host is named more than once, with another user or port")
    return hosts


def survey(
    hosts: Sequence[Host], home: Path, say: Callable[[str], None], *, terminal: bool
) -> list[SurveyedHost]:
    """Connects to all hosts and asks for their surveys; PrepareError names those that fail."""
    clients = connect.connect(
        hosts,
        terminal=terminal,
        progress=lambda host, text: say(f"{host.name}: {text}"),
        groups=inventory.names(home),
    )
    surveys = side_by_side(clients, lambda client: client.ask("survey").values)
    reachability.distinct(hosts, surveys)
    addresses = reachability.addresses_of(hosts, clients, surveys)
    return [
        SurveyedHost(client.host.name, client, surveys[client.host.name], address)
        for client, address in zip(clients, addresses, strict=True)
    ]
