"""The networks of a run over several hosts: how they are chosen, passed on, and shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.launch.finding import Level, refused, sentence
from shanty.launch.network import user_settings
from shanty.launch.network.topology import Route
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from shanty.launch.network.topology import SurveyedHost

OPEN = Route()  # left to the MPI


def chosen(
    job: JobSpec,
    installation: Installation,
    hosts: Sequence[SurveyedHost],
    home: Path,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Route:
    """The networks that the run takes; empty for a single host.

    FoundError where no network joins all hosts, or none that this MPI can use (only a warning
    where the user has named the ranks' networks), or no host has a network that the user names.
    """
    from shanty.launch.network.selection import decide

    if len(hosts) < 2:
        return OPEN
    flavour = FLAVOURS[installation.flavour]
    choice = decide(hosts, home, say, ports=flavour.ports(job.env))
    surveys = {host.name: host.survey for host in hosts}
    route, findings, decisive = user_settings.settled(choice, job, flavour, surveys)
    errors = [one for one in decisive if one.level is Level.ERROR]
    if errors:
        raise refused(errors)
    for one in findings:
        if one.level is not Level.NOTE:
            warn(sentence(one))
    return route


def interfaces_of(route: Route, host: str) -> tuple[tuple[str, str], ...]:
    """A host's interfaces on the networks, the best first: name and address each."""
    found = [rail.interfaces[host] for rail in route.rails]
    return tuple((interface.name, interface.address) for interface in found)


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
