"""Checks the user's own settings for networks, and which networks of a route the MPI can use.

The settings are in the job's environment or in the line of the user's own launcher, and win. If a
name is wrong on a host, the MPI takes all interfaces there, or crashes, or waits.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shanty.launch.finding import Finding, Level
from shanty.launch.network.topology import Choice, Rail, Route, Surveys
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.parameters import MEANINGS, plain
from shanty.runtime.spec import JobSpec, Raw

_BESIDE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")
_PARAMETERS = ("mca", "gmca", "prtemca", "pmixmca")  # options with a name and a value
_VARIABLES = ("env", "genv")


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting that names interfaces or networks."""

    written: str  # by the user
    variable: str
    value: str
    of_ranks: bool  # for the ranks' data, not for the launcher or a library


def given(job: JobSpec, flavour: Flavour) -> list[Flag]:
    """Returns all settings for interfaces that this MPI, NCCL, Gloo or UCX reads."""
    ranks = set(flavour.rank_networks)
    known = {*ranks, *flavour.launch_networks, *_BESIDE}
    said = [(f"{name}={value}", name, value) for name, value in job.env.items()]
    if isinstance(job.command, Raw):
        said += _of_line(job.command, known, flavour.launch_networks)
    return [
        Flag(written, name, value, name in ranks) for written, name, value in said if name in known
    ]


def _of_line(
    command: Raw, known: Iterable[str], launch: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    words = list(command.argv)
    if command.shell:
        try:
            words = shlex.split(command.argv[0])
        except ValueError:  # an unbalanced quote, which the shell will report
            return
    words = ["", *words, "", ""]
    for before, word, first, second in zip(words, words[1:], words[2:], words[3:], strict=False):
        option = word.lstrip("-") if word.startswith("-") else ""
        name, _, value = (first if option else word).partition("=")
        if option in _PARAMETERS:
            full = next((prefix + first for prefix in _PREFIXES if prefix + first in known), "")
            yield f"{word} {first} {second}", full, second
        elif option in _VARIABLES:
            yield f"{word} {first} {second}", first, second
        elif option == "x":
            yield f"{word} {first}", name, value
        elif option == "iface":
            yield f"{word} {first}", launch[0], first
        elif not option and "=" in word and before != "-x":
            yield word, name, value


def check(
    flags: Sequence[Flag], surveys: Surveys, joining: Sequence[Rail], route: Route
) -> list[Finding]:
    """Finds errors in the flags; `joining` are the networks that join all hosts."""
    fix = "leave it out"
    if route.rails:
        usual = dict.fromkeys(one.name for one in route.rails[0].interfaces.values())
        fix = f"leave it out, then {' / '.join(usual)} is taken"
    found = []

    def add(flag: Flag, hosts: Sequence[str], what: str, level: Level = Level.WARNING) -> None:
        what = f"{flag.written} {what} on {', '.join(hosts)}"
        host = hosts[0] if len(hosts) == 1 else ""
        found.append(Finding("flag-interface", level, host, what, fix=fix))

    for flag in flags:
        meaning = MEANINGS.get(plain(flag.variable), "")
        taken = {}
        for host, survey in surveys.items():
            names = named_interfaces(flag.value, meaning, survey["addresses"])
            if names is not None:
                taken[host] = names
        lacking = [host for host, names in taken.items() if not names]
        if lacking:
            of_mpi = flag.of_ranks or flag.variable not in _BESIDE
            hopeless = of_mpi and len(lacking) == len(surveys)
            level = Level.ERROR if hopeless else Level.WARNING
            add(flag, lacking, "matches no interface", level)
            continue
        if not joining or not taken:
            continue  # another finding says that, or nothing is known
        leading = {host: {rail.interfaces[host].name for rail in joining} for host in taken}
        astray = [host for host, names in taken.items() if names - leading[host]]
        if astray:
            strange = sorted(set().union(*(taken[host] - leading[host] for host in astray)))
            add(flag, astray, f"takes {', '.join(strange)}, which does not lead to all other hosts")
    return found


def named_interfaces(
    value: str, meaning: str, addresses: Sequence[Mapping[str, Any]]
) -> set[str] | None:
    """Returns the interfaces of a host that a setting with that meaning (MEANINGS) names.

    None if it names excluded interfaces, or devices of another kind.
    """
    prefixes = meaning == "NCCL's interfaces" and not value.startswith("=")
    words = [word.strip() for word in value.removeprefix("=").split(",") if word.strip()]
    if not words or value.startswith("^") or "all" in words or "$" in value:
        return None
    if meaning == "UCX's devices" and any(":" in word for word in words):
        return None  # mlx5_0:1

    def is_named(name: str, address: str, word: str) -> bool:
        with suppress(ValueError):
            return ipaddress.ip_address(address) in ipaddress.ip_network(word, strict=False)
        return name.startswith(word) if prefixes else name == word

    return {
        entry["interface"]
        for entry in addresses
        for word in words
        if is_named(entry["interface"], entry["address"].partition("%")[0], word)
    }


def settled(
    choice: Choice, job: JobSpec, flavour: Flavour, surveys: Surveys
) -> tuple[Route, list[Finding], list[Finding]]:
    """Returns the route that a job takes, all findings, and those whose errors end the run.

    If the user has named the ranks' networks, only errors in these settings end the run.
    """
    route, unusable = usable(choice.route, flavour, list(surveys))
    flags = given(job, flavour)
    unfit = check(flags, surveys, choice.joining, route)
    found = [*choice.findings, *unusable, *unfit]
    return route, found, unfit if any(flag.of_ranks for flag in flags) else found


def usable(route: Route, flavour: Flavour, hosts: Sequence[str]) -> tuple[Route, list[Finding]]:
    """Returns the rails that an MPI can use together, all of one family, that of the best one.

    With a finding if it cannot use any network that joins the hosts.
    """
    rails = [rail for rail in route.rails if flavour.ipv6 or not _is_ipv6(rail)]
    if rails or not route.rails:
        one_family = tuple(rail for rail in rails if _is_ipv6(rail) == _is_ipv6(rails[0]))
        return Route(one_family, route.reason if one_family == route.rails else ""), []
    able = " or ".join(f"--mpi {one.name}" for one in FLAVOURS.values() if one.ipv6)
    unusable = Finding(
        "ipv6-only",
        Level.ERROR,
        "",
        f"the hosts are joined by IPv6 only, which {flavour.title} cannot use",
        ", ".join(hosts),
        f"take {able}, or give the hosts IPv4 addresses in one network",
    )
    return Route(), [unusable]


def _is_ipv6(rail: Rail) -> bool:
    return any(":" in interface.address for interface in rail.interfaces.values())
