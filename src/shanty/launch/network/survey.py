"""Meets hosts to look at their networks, when no run is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.cluster import contact, inventory
from shanty.launch.cluster.host import Host
from shanty.launch.cluster.hostfiles import read_hostfile
from shanty.launch.cluster.parallel import side_by_side
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.targets import reachability
from shanty.runtime.errors import PrepareError, UsageError


@dataclass(frozen=True, slots=True)
class Visited:
    """A host that answers, as `decide` and `examine` take it."""

    name: str
    client: RpcClient
    survey: Mapping[str, Any]
    address: str


def chosen(on: str | None, hostfile: str | None, home: Path) -> tuple[Host, ...]:
    """The hosts that are meant; UsageError when none is, or one twice."""
    if on and hostfile:
        raise UsageError("hosts and a host file are both given", fix="give one of them")
    if not (on or hostfile):
        raise UsageError("no hosts are given", fix="name them: a,b,c, a group, or --hostfile FILE")
    hosts = read_hostfile(Path(hostfile)) if hostfile else inventory.resolve(on or "", home)
    hosts = inventory.recognised(hosts, home)
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UsageError("a host is named more than once, with another user or port")
    return hosts


def visit(
    hosts: Sequence[Host], home: Path, say: Callable[[str], None], *, terminal: bool
) -> list[Visited]:
    """Reach all hosts and see what they are; PrepareError names those that fail."""
    clients = contact.connect(
        hosts,
        terminal=terminal,
        progress=lambda host, text: say(f"{host.name}: {text}"),
        groups=inventory.names(home),
    )
    surveys = side_by_side(clients, lambda client: client.ask("survey").values)
    reachability.distinct(hosts, surveys)
    addresses = addresses_of(hosts, clients, surveys)
    return [
        Visited(client.host.name, client, surveys[client.host.name], address)
        for client, address in zip(clients, addresses, strict=True)
    ]


def addresses_of(
    hosts: Sequence[Host], clients: Sequence[RpcClient], surveys: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Where the lead host's ssh finds each, as in a run; where it does not, where ours does."""
    try:
        found = reachability.to_hosts(hosts, clients[0], surveys)
    except PrepareError:
        return [(surveys[host.name]["ssh"] or {}).get("server", "") for host in hosts]
    own = next((way["source"] for way in found[1:]), "")
    return [own, *(way["peer"] for way in found[1:])]
