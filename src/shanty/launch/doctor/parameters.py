"""Which settings of MPIs break runs: those of files, and of the environment of a login; pure.

Most of them lose against shanty's own settings, wherever they stand, and break only what is started
by hand: a warning. Those that break a run of shanty's too are errors; each was tried in a lab of
three hosts, with the MPIs that it is about (`BREAKS`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.finding import Finding, Level
from shanty.runtime.mpi.parameters import BREAKS, MEANINGS, plain

_SSH = ("ssh", "rsh")
_OVER_TCP = ("tcp", "tcp;ofi_rxm", "sockets", "net")


@dataclass(frozen=True, slots=True)
class Place:
    """The host that the settings are on: `addresses` and `fabrics` as its survey has them."""

    addresses: Sequence[Mapping[str, Any]]
    fabrics: Sequence[str]
    several: bool  # the run is on several hosts
    lead: bool  # the launcher runs here
    flavour: str = ""  # the run's MPI, "" where it is not known


@dataclass(frozen=True, slots=True)
class Harm:
    """A setting that breaks runs; `place` is its file, "" for the environment."""

    name: str
    value: str
    place: str
    why: str
    level: Level


Judge = Callable[[str, Place], str]  # why a value is harmful, "" where it is not


def broken(seen: Seen, need: Need) -> Iterator[Harm]:
    """The settings of a host that break runs, by its health."""
    place = Place(
        seen.survey["addresses"],
        seen.survey["fabrics"],
        several=len(need.hosts) > 1,
        lead=need.hosts[:1] in ((), (seen.name,)),
        flavour=need.flavour,
    )
    yield from harmful(seen.health["settings"], place)


def of_settings(seen: Seen, need: Need) -> Iterator[Finding]:
    """A finding for each of them."""
    for harm in broken(seen, need):
        where = harm.place or "the environment of a login"
        home = f"{seen.survey['home'].rstrip('/')}/"
        yield Finding(
            "mpi-parameters",
            harm.level,
            seen.name,
            f"{where} sets {harm.name} = {harm.value}: {harm.why}",
            f"{harm.name} = {harm.value}",
            f"remove that line from {where}" if harm.place else f"unset {harm.name} for logins",
            fixable=harm.place.startswith(home),
        )


def harmful(settings: Iterable[Sequence[str]], place: Place) -> Iterator[Harm]:
    """Those of `settings` ([name, value, file] each) that break a run at `place`."""
    for name, value, file in settings:
        meaning = MEANINGS.get(plain(name))
        why = _JUDGES[meaning](value, place) if meaning and value.strip() else ""
        if why:
            about = BREAKS.get(plain(name), ())
            serious = place.flavour in about or (about and not place.flavour)
            yield Harm(name, value, file, why, Level.ERROR if serious else Level.WARNING)


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


# -------------------------------------------------------------------------- interfaces


def _is_there(word: str, place: Place) -> bool:
    """True for the name of one of the host's interfaces, or a network that it is in."""
    if "/" in word:
        try:
            network = ipaddress.ip_network(word, strict=False)
        except ValueError:
            return False
        return any(_address(entry) in network for entry in place.addresses)
    return any(entry["interface"] == word for entry in place.addresses)


def _address(entry: Mapping[str, Any]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(str(entry["address"]).partition("%")[0])


def _none_of(words: Sequence[str], place: Place) -> str:
    if not words or any(_is_there(word, place) for word in words):
        return ""
    return f"the host has no interface {' or '.join(words)}"


def _of_launcher(value: str, place: Place) -> str:
    """A launcher that finds no such interface does not start, on one host neither."""
    return _none_of(_words(value), place)


def _of_ranks(value: str, place: Place) -> str:
    return _none_of(_words(value), place) if place.several else ""


def _excluded(_value: str, place: Place) -> str:
    """Open MPI takes no list of wanted interfaces beside it, so shanty leaves its own out."""
    if not place.several:
        return ""
    return "shanty cannot choose the network there, and Open MPI takes all that is not in the list"


def _of_nccl(value: str, place: Place) -> str:
    """Beginnings of names; after `=` they are whole, and after `^` not wanted."""
    words = _words(value.lstrip("="))
    if value.startswith("^") or not place.several:
        return ""
    if value.startswith("="):
        return _none_of(words, place)
    names = [str(entry["interface"]) for entry in place.addresses]
    begun = any(name.startswith(word) for name in names for word in words)
    return "" if begun else _none_of(words, place)


def _of_ucx(value: str, place: Place) -> str:
    """Devices: an interface's name, or DEVICE:PORT of a fabric, which is not looked at here."""
    words = _words(value)
    open_ended = any(":" in word or word == "all" for word in words)
    return "" if open_ended or not place.several else _none_of(words, place)


# -------------------------------------------------------------------------- transports


def _without_tcp(value: str, place: Place) -> str:
    """A list of Open MPI's ways to carry bytes; `^` before it means all but these."""
    if not place.several:
        return ""
    words = _words(value.lstrip("^"))
    if value.startswith("^"):
        return "tcp is ruled out, so hosts cannot reach each other" if "tcp" in words else ""
    if "tcp" in words or (place.fabrics and {"openib", "uct", "ofi"} & set(words)):
        return ""
    return "tcp is not in the list, so hosts cannot reach each other"


def _shared_memory_only(value: str, place: Place) -> str:
    one_host = place.several and value.strip().lower() in ("shm", "shm:shm")
    return "shared memory alone does not reach other hosts" if one_host else ""


def _fabric_provider(value: str, place: Place) -> str:
    words = [word.lower() for word in _words(value)]
    if not place.several or place.fabrics or value.startswith("^"):
        return ""
    if any(word.startswith(_OVER_TCP) for word in words):
        return ""
    return f"the host has no network for {' or '.join(words)}, only TCP"


def _ucx_transports(value: str, place: Place) -> str:
    words = _words(value.lstrip("^"))
    if not place.several:
        return ""
    if value.startswith("^"):
        return "tcp is ruled out" if "tcp" in words and not place.fabrics else ""
    if place.fabrics or {"tcp", "all"} & set(words):
        return ""
    return "tcp is not in the list, and the host has no other network"


# --------------------------------------------------------------------------- launchers


def _agent(value: str, place: Place) -> str:
    """The program that a launcher takes for ssh; in a run over hosts that has to be shanty's."""
    if not (place.several and place.lead):
        return ""
    programs = [choice.split()[0] for choice in value.split(":") if choice.split()]
    return "" if any(name in _SSH for name in programs) else "the launcher does not start by ssh"


def _launcher(value: str, place: Place) -> str:
    if not (place.several and place.lead) or value.startswith("^"):
        return ""
    return "" if set(_words(value)) & set(_SSH) else "the launcher does not start by ssh"


# By what a setting says (runtime/mpi/parameters.py).
_JUDGES: Mapping[str, Judge] = {
    "launcher's interfaces": _of_launcher,
    "ranks' interfaces": _of_ranks,
    "NCCL's interfaces": _of_nccl,
    "UCX's devices": _of_ucx,
    "excluded interfaces": _excluded,
    "Open MPI's transports": _without_tcp,
    "Intel MPI's transports": _shared_memory_only,
    "libfabric's provider": _fabric_provider,
    "UCX's transports": _ucx_transports,
    "launcher's way": _launcher,
    "ssh program": _agent,
}
