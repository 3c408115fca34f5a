"""The networks of a run over several hosts: chosen, told to all that talks, and shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.launch.finding import Finding, Level
from shanty.launch.network.route import Rail, Route
from shanty.launch.targets import flags
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from shanty.launch.network.decide import Reached

OPEN = Route()  # left to the MPI


def chosen(
    job: JobSpec,
    installation: Installation,
    hosts: Sequence[Reached],
    home: Path,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Route:
    """The networks that the run takes; empty for a single host.

    FoundError where no network joins all hosts, or none that this MPI can use (only a warning
    where the user has named the ranks' networks himself), or a name of his is on no host.
    """
    from shanty.launch.doctor import quick
    from shanty.launch.network.decide import decide

    if len(hosts) < 2:
        return OPEN
    flavour = FLAVOURS[installation.flavour]
    decision = decide(hosts, home, say, ports=flavour.ports(job.env))
    given = flags.given(job, flavour)
    route = usable(decision.route, flavour)
    findings = [*decision.findings]
    if decision.route.rails and not route.rails:
        findings.append(ipv6_only(flavour, [host.name for host in hosts]))
    surveys = {host.name: host.survey for host in hosts}
    unfit = flags.check(given, surveys, decision.joining, route)
    decisive = unfit if any(flag.of_ranks for flag in given) else [*findings, *unfit]
    errors = [one for one in decisive if one.level is Level.ERROR]
    if errors:
        raise quick.refused(errors)
    findings += unfit
    for one in findings:
        if one.level is not Level.NOTE:
            warn(quick.sentence(one))
    return replace(route, reason=decision.reason if route.rails == decision.route.rails else "")


def usable(route: Route, flavour: Flavour) -> Route:
    """The rails that an MPI can use together: all of one family, that of the best one of them."""
    rails = [rail for rail in route.rails if flavour.ipv6 or not _by_ipv6(rail)]
    return Route(tuple(rail for rail in rails if _by_ipv6(rail) == _by_ipv6(rails[0])))


def _by_ipv6(rail: Rail) -> bool:
    return any(":" in interface.address for interface in rail.interfaces.values())


def ipv6_only(flavour: Flavour, hosts: Sequence[str]) -> Finding:
    """That an MPI can use none of the networks that join the hosts."""
    able = " or ".join(f"--mpi {one.name}" for one in FLAVOURS.values() if one.ipv6)
    return Finding(
        "ipv6-only",
        Level.ERROR,
        "",
        f"the hosts are joined by IPv6 only, which {flavour.title} cannot use",
        ", ".join(hosts),
        f"take {able}, or give the hosts IPv4 addresses in one network",
    )


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
