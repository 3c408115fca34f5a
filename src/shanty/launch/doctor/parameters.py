"""Finds settings of MPIs, in files and in a login's environment, that break runs; pure.

Most of them lose against shanty's own settings, wherever they stand, and break only what is started
by hand: a warning. Those that break a run of shanty's too are errors; each was tried in a lab of
three hosts, with the MPIs that it is about (`BREAKS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.finding import Finding, Level
from shanty.launch.network.user_settings import named_interfaces
from shanty.runtime.mpi.parameters import BREAKS, MEANINGS, plain

_SSH = ("ssh", "rsh")
_OF_INTERFACES = (
    "launcher's interfaces",
    "ranks' interfaces",
    "NCCL's interfaces",
    "UCX's devices",
)
_OVER_TCP = ("tcp", "tcp;ofi_rxm", "sockets", "net")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The host that has the settings: `addresses` and `fabrics` as in its survey."""

    addresses: Sequence[Mapping[str, Any]]
    fabrics: Sequence[str]
    several: bool  # the run is on several hosts
    lead: bool  # the launcher runs here
    flavour: str = ""  # the run's MPI, "" where it is not known


@dataclass(frozen=True, slots=True)
class HarmfulSetting:
    """A setting that breaks runs; `file` has it, "" for the environment."""

    name: str
    value: str
    file: str
    why: str
    level: Level


Judge = Callable[[str, Surroundings], str]  # why a value is harmful, "" where it is not


def broken(seen: Seen, need: Need) -> Iterator[HarmfulSetting]:
    """Returns the settings of a host that break runs, by its health."""
    host = Surroundings(
        seen.survey["addresses"],
        seen.survey["fabrics"],
        several=len(need.hosts) > 1,
        lead=need.hosts[:1] in ((), (seen.name,)),
        flavour=need.flavour,
    )
    yield from harmful(seen.health["settings"], host)


def of_settings(seen: Seen, need: Need) -> Iterator[Finding]:
    """Makes a finding for each setting of a host that breaks runs."""
    for harm in broken(seen, need):
        where = harm.file or "the environment of a login"
        home = f"{seen.survey['home'].rstrip('/')}/"
        yield seen.finding(
            "mpi-parameters",
            harm.level,
            f"{where} sets {harm.name} = {harm.value}: {harm.why}",
            f"{harm.name} = {harm.value}",
            f"remove that line from {where}" if harm.file else f"unset {harm.name} for logins",
            fixable=harm.file.startswith(home),
        )


def harmful(settings: Iterable[Sequence[str]], host: Surroundings) -> Iterator[HarmfulSetting]:
    """Returns those of `settings` ([name, value, file] each) that break a run on `host`."""
    for name, value, file in settings:
        meaning = MEANINGS.get(plain(name))
        why = _why(meaning, value, host) if meaning and value.strip() else ""
        if why:
            about = BREAKS.get(plain(name), ())
            serious = host.flavour in about or (about and not host.flavour)
            yield HarmfulSetting(name, value, file, why, Level.ERROR if serious else Level.WARNING)


def _why(meaning: str, value: str, host: Surroundings) -> str:
    """Says why a value is harmful, "" where it is not."""
    # A launcher that finds no such interface does not start, on one host neither.
    if not host.several and meaning != "launcher's interfaces":
        return ""
    return _JUDGES[meaning](value, host)


def _absent(meaning: str, value: str, host: Surroundings) -> str:
    found = named_interfaces(value, meaning, host.addresses)
    words = " or ".join(_words(value.lstrip("=")))
    return f"the host has no interface {words}" if found is not None and not found else ""


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _excluded(_value: str, _host: Surroundings) -> str:
    # Open MPI takes no list of wanted interfaces beside it, so shanty leaves its own out.
    return "shanty cannot choose the network there, and Open MPI takes all that is not in the list"


def _without_tcp(value: str, host: Surroundings) -> str:
    """Judges a list of Open MPI's transports; `^` before it means all but these."""
    words = _words(value.lstrip("^"))
    if value.startswith("^"):
        return "tcp is ruled out, so hosts cannot reach each other" if "tcp" in words else ""
    if "tcp" in words or (host.fabrics and {"openib", "uct", "ofi"} & set(words)):
        return ""
    return "tcp is not in the list, so hosts cannot reach each other"


def _shared_memory_only(value: str, _host: Surroundings) -> str:
    one_host = value.strip().lower() in ("shm", "shm:shm")
    return "shared memory alone does not reach other hosts" if one_host else ""


def _fabric_provider(value: str, host: Surroundings) -> str:
    words = [word.lower() for word in _words(value)]
    if host.fabrics or value.startswith("^"):
        return ""
    if any(word.startswith(_OVER_TCP) for word in words):
        return ""
    return f"the host has no network for {' or '.join(words)}, only TCP"


def _ucx_transports(value: str, host: Surroundings) -> str:
    words = _words(value.lstrip("^"))
    if value.startswith("^"):
        return "tcp is ruled out" if "tcp" in words and not host.fabrics else ""
    if host.fabrics or {"tcp", "all"} & set(words):
        return ""
    return "tcp is not in the list, and the host has no other network"


def _agent(value: str, host: Surroundings) -> str:
    """The program that a launcher takes for ssh; in a run over hosts that has to be shanty's."""
    if not host.lead:
        return ""
    programs = [choice.split()[0] for choice in value.split(":") if choice.split()]
    return "" if any(name in _SSH for name in programs) else "the launcher does not start by ssh"


def _launcher(value: str, host: Surroundings) -> str:
    if not host.lead or value.startswith("^"):
        return ""
    return "" if set(_words(value)) & set(_SSH) else "the launcher does not start by ssh"


# By what a setting means (runtime/mpi/parameters.py).
_JUDGES: Mapping[str, Judge] = {
    **{meaning: partial(_absent, meaning) for meaning in _OF_INTERFACES},
    "excluded interfaces": _excluded,
    "Open MPI's transports": _without_tcp,
    "Intel MPI's transports": _shared_memory_only,
    "libfabric's provider": _fabric_provider,
    "UCX's transports": _ucx_transports,
    "launcher's way": _launcher,
    "ssh program": _agent,
}
