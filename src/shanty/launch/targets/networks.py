"""The networks of a run over several hosts: chosen, told to all that talks, and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.launch.finding import Level, refused, sentence
from shanty.launch.network import user_settings
from shanty.launch.network.route import Route
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from shanty.launch.targets.site import Node

OPEN = Route()  # left to the MPI


def chosen(
    job: JobSpec,
    installation: Installation,
    nodes: Sequence[Node],
    home: Path,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Route:
    """The networks that the run takes; empty for a single host.

    FoundError where no network joins all hosts, or none that this MPI can use (only a warning
    where the user has named the ranks' networks himself), or a name of his is on no host.
    """
    from shanty.launch.network.selection import decide

    if len(nodes) < 2:
        return OPEN
    flavour = FLAVOURS[installation.flavour]
    decision = decide(nodes, home, say, ports=flavour.ports(job.env))
    given = user_settings.given(job, flavour)
    surveys = {node.name: node.survey for node in nodes}
    route, unusable = user_settings.usable(decision.route, flavour, list(surveys))
    findings = [*decision.findings, *unusable]
    unfit = user_settings.check(given, surveys, decision.joining, route)
    decisive = unfit if any(flag.of_ranks for flag in given) else [*findings, *unfit]
    errors = [one for one in decisive if one.level is Level.ERROR]
    if errors:
        raise refused(errors)
    findings += unfit
    for one in findings:
        if one.level is not Level.NOTE:
            warn(sentence(one))
    return replace(route, reason=decision.reason if route.rails == decision.route.rails else "")


# ------------------------------------------------------------------------------- what is told


def of_host(
    route: Route, host: str, flavour: Flavour, layout: Layout, given: Mapping[str, str]
) -> dict[str, str]:
    """The settings for what starts on a host: for the MPI, and for what scripts use beside it.

    Nothing that contradicts `given`, the user's own.
    """
    names = _names(route, host)
    if not names:
        return {}
    beside = {
        "NCCL_SOCKET_IFNAME": "=" + ",".join(names),  # "=": not all that begin like this
        "GLOO_SOCKET_IFNAME": names[0],
    }
    if layout.tcp_only:  # else UCX would pass by InfiniBand
        beside["UCX_NET_DEVICES"] = names[0]
    own = {name: value for name, value in beside.items() if name not in given}
    return {**own, **flavour.interfaces(layout, names, given)}


def alike(route: Route) -> str:
    """The name of the best network's interface if it is the same on all hosts, else ""."""
    names = {one.name for rail in route.rails[:1] for one in rail.interfaces.values()}
    return names.pop() if len(names) == 1 else ""


def told(route: Route, host: str) -> dict[str, str]:
    """What a host's ranks may want to know: its address and interface on the best network."""
    if not route.rails:
        return {}
    interface = route.rails[0].interfaces[host]
    return {"SHANTY_ADDRESS": interface.address, "SHANTY_INTERFACE": interface.name}


def _names(route: Route, host: str) -> list[str]:
    return list(dict.fromkeys(rail.interfaces[host].name for rail in route.rails))


# ------------------------------------------------------------------------------ what is shown


def to_json(route: Route) -> dict[str, Any]:
    """The networks as a run keeps them."""
    rails = [
        {
            "networks": list(rail.networks),
            "interfaces": {host: asdict(one) for host, one in rail.interfaces.items()},
        }
        for rail in route.rails
    ]
    return {"rails": rails, "text": described(route)}


def described(route: Route) -> str:
    """The networks in a line: `tb0 (10.78.0.0/24), the fastest: 9.4 Gbit/s …`."""
    words = []
    for rail in route.rails:
        names = dict.fromkeys(one.name for one in rail.interfaces.values())
        words.append(f"{' / '.join(names)} ({', '.join(rail.networks)})")
    return ", ".join(filter(None, [" and ".join(words), route.reason]))
