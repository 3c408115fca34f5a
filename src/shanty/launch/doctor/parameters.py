"""Finds settings of MPIs, in files and in a login's environment, that break runs; pure.

Most of them lose against shanty's own settings, and break only what is started by hand: a warning.
Those that break a run of shanty's too (`BREAKS`, each was tried in a lab) are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.finding import Finding, Level
from shanty.launch.network.user_settings import named_interfaces
from shanty.runtime.mpi.parameters import BREAKS, MEANINGS, plain

_SSH = {"ssh", "rsh"}
_OVER_TCP = ("tcp", "tcp;ofi_rxm", "sockets", "net")
_NOT_BY_SSH = "the launcher does not start by ssh"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The host that has the settings: `addresses` and `fabrics` as in its survey."""

    addresses: Sequence[Mapping[str, Any]]
    fabrics: Sequence[str]
    several: bool  # the run is on several hosts
    lead: bool  # the launcher runs here
    flavour: str = ""  # the run's MPI, "" where it is not known


class HarmfulSetting(NamedTuple):
    """A setting that breaks runs; `file` has it, "" for the environment."""

    name: str
    value: str
    file: str
    why: str
    level: Level


def broken(seen: Seen, need: Need) -> Iterator[HarmfulSetting]:
    """Returns the settings of a host that break runs, by its health."""
    host = Surroundings(
        seen.survey["addresses"],
        seen.survey["fabrics"],
        several=len(need.hosts) > 1,
        lead=need.hosts[:1] in ((), (seen.name,)),
        flavour=need.flavour,
    )
    return harmful(seen.health["settings"], host)


def of_settings(seen: Seen, need: Need) -> Iterator[Finding]:
    """Makes a finding for each setting of a host that breaks runs."""
    home = f"{seen.survey['home'].rstrip('/')}/"
    for name, value, file, why, level in broken(seen, need):
        where = file or "the environment of a login"
        yield seen.finding(
            level,
            "mpi-parameters",
            f"{where} sets {name} = {value}: {why}",
            f"{name} = {value}",
            f"remove that line from {where}" if file else f"unset {name} for logins",
            fixable=file.startswith(home),
        )


def harmful(settings: Iterable[Sequence[str]], host: Surroundings) -> Iterator[HarmfulSetting]:
    """Returns those of `settings` ([name, value, file] each) that break a run on `host`."""
    for name, value, file in settings:
        meaning = MEANINGS.get(plain(name), "")
        # A launcher that finds no such interface does not start, on one host neither.
        matters = host.several or meaning == "launcher's interfaces"
        why = _why(meaning, value, host) if meaning and matters and value.strip() else ""
        if why:
            about = BREAKS.get(plain(name), ())
            serious = host.flavour in about or (about and not host.flavour)
            yield HarmfulSetting(name, value, file, why, Level.ERROR if serious else Level.WARNING)


def _why(meaning: str, value: str, host: Surroundings) -> str:
    """Says why a value is harmful, by what the setting means; "" where it is not."""
    excluded = value.startswith("^")  # all but these
    listed = _words(value.lstrip("^"))
    has_tcp = "tcp" in listed
    match meaning:
        case "excluded interfaces":
            # Open MPI takes no list of wanted interfaces beside it, so shanty leaves its own out.
            return (
                "shanty cannot choose the network there, and Open MPI takes all that is not in "
                "the list"
            )
        case "Open MPI's transports":
            if excluded:
                return "tcp is ruled out, so hosts cannot reach each other" if has_tcp else ""
            if not has_tcp and not (host.fabrics and {"openib", "uct", "ofi"} & set(listed)):
                return "tcp is not in the list, so hosts cannot reach each other"
        case "Intel MPI's transports":
            if value.strip().lower() in ("shm", "shm:shm"):
                return "shared memory alone does not reach other hosts"
        case "libfabric's provider":
            words = [word.lower() for word in _words(value)]
            if not (host.fabrics or excluded or any(w.startswith(_OVER_TCP) for w in words)):
                return f"the host has no network for {' or '.join(words)}, only TCP"
        case "UCX's transports":
            if not host.fabrics and excluded and has_tcp:
                return "tcp is ruled out"
            if not (host.fabrics or excluded or has_tcp or "all" in listed):
                return "tcp is not in the list, and the host has no other network"
        case "launcher's way":
            if host.lead and not excluded and not _SSH & set(listed):
                return _NOT_BY_SSH
        case "ssh program":  # in a run over hosts that has to be shanty's
            programs = {choice.split()[0] for choice in value.split(":") if choice.split()}
            if host.lead and not _SSH & programs:
                return _NOT_BY_SSH
        case _:  # interfaces
            if named_interfaces(value, meaning, host.addresses) == set():
                return f"the host has no interface {' or '.join(_words(value.lstrip('=')))}"
    return ""


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]
