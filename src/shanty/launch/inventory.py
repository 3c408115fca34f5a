"""Hosts as people name them: `--on a,b:4,user@10.0.0.3`, in host files, and in groups with a name.

A group is a file of its own, `<home>/hosts/NAME.json`:

    {"hosts": [{"name": "a", "user": null, "port": null, "slots": 4, "config": ""}], "lab": true}

`lab` is there when the hosts are a lab's, which writes and removes the file itself. Host files are
those of Open MPI and DeepSpeed, of Hydra, and MLX's JSON.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.runtime import site
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.mpi import hostfiles
from shanty.runtime.ranges import expand
from shanty.runtime.rundir import read_json, storage_errors, write_json
from shanty.runtime.site import Host
from shanty.runtime.suggestions import nearest

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What may stand in the name of a host or user: no white space, and nothing that ssh or a shell
# could read as anything but a name.
_ODD = r"\s\x00-\x1f\x7f,:%'\"`$\\;&<>|(){}!*?#\[\]=/^"
_WORD = re.compile(f"[^{_ODD}@~-][^{_ODD}]*")
_RANGE = re.compile(r"\[[0-9,\s-]+\]")
_FORMS = "it is written as [USER@]HOST[:SLOTS], [IPV6]:SLOTS or ssh://[USER@]HOST[:PORT]"


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that are kept under a name; `lab` is true for those of `shanty lab`."""

    name: str
    hosts: tuple[Host, ...]
    lab: bool = False

    def to_json(self) -> dict[str, Any]:
        """The group's file."""
        value: dict[str, Any] = {"hosts": [host._asdict() for host in self.hosts]}
        return {**value, "lab": True} if self.lab else value


def resolve(text: str, home: Path) -> tuple[Host, ...]:
    """The hosts that `--on TEXT` means, each once, in their order; UsageError if there is none.

    Each part is a group's name, a host, or several as `gpu[1-8]`. A host that is named several
    times has the sum of its slots, where a mention without a number counts as one; a host with 0
    slots is left out.
    """
    hosts: list[Host] = []
    parts = spread(text)
    if not any(parts):
        raise UsageError("--on names no host", fix=_FORMS)
    for part in filter(None, parts):
        if (home / "hosts" / f"{part}.json").is_file() and _GROUP.fullmatch(part):
            hosts += load(part, home).hosts
            continue
        host = parse_host(part)
        if host.slots is not None and host.name in names(home) and host.user is None:
            raise UsageError(
                f"{host.name} is a group of hosts, so {part!r} is not clear",
                "the slots of a group are kept with its hosts",
                f"give --on {host.name}; see `shanty hosts show {host.name}`",
            )
        hosts.append(host)
    return usable(hosts, f"--on {text}")


def spread(text: str) -> list[str]:
    """The parts between commas, each range written out: `n[08-10]` is n08, n09, n10.

    UsageError for an invalid range. An IPv6 address in brackets stays as it is.
    """
    found: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text):
        try:
            found += expand(part.strip()) if _RANGE.search(part) else [part.strip()]
        except ValueError as error:
            raise UsageError(f"invalid range in {part.strip()!r}", fix="write gpu[1-8]") from error
    return found


def recognised(hosts: Iterable[Host], home: Path) -> tuple[Host, ...]:
    """`hosts` with what the groups know of them: a host of one group may be named by itself.

    User, port, ssh configuration and slots are taken over where none were given. Of a host that
    groups disagree on, only those entries count that have the given user; if they still disagree,
    it is left as it was written.
    """
    known: dict[str, list[Host]] = {}
    for name in names(home):
        for host in load(name, home).hosts:
            known.setdefault(host.name, []).append(host)
    found = []
    for host in hosts:
        # A group that was made of another one's hosts, by name, knows less of them.
        entries = known.get(host.name, [])
        entries = [one for one in entries if one.user or one.port or one.config] or entries
        entries = [one for one in entries if one.user and one.user == host.user] or entries
        given = {field: value for field, value in host._asdict().items() if value not in (None, "")}
        candidates: dict[tuple[object, ...], Host] = {}
        for one in entries:
            like = one._replace(**given)
            candidates.setdefault(_key(like), like)
        found.append(next(iter(candidates.values())) if len(candidates) == 1 else host)
    return tuple(found)


def usable(hosts: Iterable[Host], source: str) -> tuple[Host, ...]:
    """`hosts` with each once and without those that have no slots; `source` is for the error."""
    named = merged(hosts)
    found = tuple(host for host in named if host.slots != 0)
    if not named:
        raise UsageError(f"{source} names no host", "it has no line with a host", hostfiles.FORMS)
    if not found:
        raise UsageError(
            f"{source} names no host that can be used",
            "a host with 0 slots is left out",
            "name at least one host with a slot",
        )
    return found


def merged(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Each host once, with the sum of its slots."""
    found: dict[tuple[object, ...], Host] = {}
    for host in hosts:
        key = _key(host)
        if key not in found:
            found[key] = host
            continue
        before = found[key].slots
        total = (1 if before is None else before) + (1 if host.slots is None else host.slots)
        found[key] = host._replace(slots=total)
    return tuple(found.values())


def _key(host: Host) -> tuple[object, ...]:
    return (host.name, host.user, host.port, host.config)


def parse_host(text: str) -> Host:
    """One host as it is written; UsageError says what is wrong with it."""
    given = text.strip()
    is_url = given.lower().startswith("ssh://")
    user, at, place = (given[6:].rstrip("/") if is_url else given).rpartition("@")
    name, number = _split(place, given)
    if at and not _WORD.fullmatch(user):
        raise UsageError(f"{given!r} names no host: its user is {user!r}", fix=_FORMS)
    if not _is_name(name):
        raise UsageError(f"{given!r} names no host", fix=_FORMS)
    if is_url:
        if number is not None and not 0 < number < 1 << 16:
            raise UsageError(f"invalid port {number} in {given!r}", fix=_FORMS)
        return Host(name, user or None, number)
    if number is not None and number > hostfiles.MOST_SLOTS:
        raise UsageError(
            f"too many slots in {given!r}: {number}",
            fix="a port is given as ssh://HOST:PORT, or in ~/.ssh/config",
        )
    return Host(name, user or None, None, number)


def _is_name(name: str) -> bool:
    if ":" not in name:
        return bool(_WORD.fullmatch(name))
    address, percent, zone = name.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return bool(_WORD.fullmatch(zone)) or not percent


def _split(place: str, given: str) -> tuple[str, int | None]:
    """The name and the number after its colon; an IPv6 address may stand without brackets."""
    if place.startswith("["):
        name, bracket, rest = place[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"{given!r} names no host", fix=_FORMS)
    elif place.count(":") > 1:
        return place, None
    else:
        name, colon, number = place.partition(":")
        rest = colon + number
    if not rest:
        return name, None
    if not (rest[1:].isascii() and rest[1:].isdigit()):
        raise UsageError(f"invalid number {rest[1:]!r} in {given!r}", fix=_FORMS)
    return name, int(rest[1:])


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file, each once, without those that have no slots.

    NotFoundError when it cannot be read; UsageError names the first invalid line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise NotFoundError(f"the host file {path} cannot be read", why) from error
    hosts = parse_hostfile(text, str(path))
    return usable(hosts, f"the host file {path}")


def parse_hostfile(text: str, source: str = "the host file") -> tuple[Host, ...]:
    """The hosts of a file's text, repeated as in the text."""
    return tuple(map(_line, hostfiles.lines(text, source)))


def _line(line: hostfiles.Line) -> Host:
    host = _host_at(line.host, line.where)
    if line.slots is None:
        return host
    if host.slots is not None:
        raise UsageError(
            f"{line.where}: the slots of {host.name} are given twice", fix="give them once"
        )
    return host._replace(slots=line.slots)


def _host_at(text: str, where: str) -> Host:
    try:
        return parse_host(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", error.why, hostfiles.FORMS) from None


def names(home: Path) -> list[str]:
    """The names of all groups."""
    return sorted(
        path.stem for path in (home / "hosts").glob("*.json") if _GROUP.fullmatch(path.stem)
    )


def load(name: str, home: Path) -> Group:
    """The group of that name; NotFoundError when there is none, StorageError for a damaged file."""
    path = home / "hosts" / f"{check_name(name)}.json"
    if not path.is_file():
        raise NotFoundError(
            f"no group of hosts is called {name!r}",
            fix=nearest(name, names(home), f"shanty hosts add {name} HOST…"),
        )
    value = read_json(path)
    try:
        hosts = tuple(_host(entry) for entry in (value or {})["hosts"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"{path} is damaged", f"{type(error).__name__}: {error}", f"shanty hosts rm {name}"
        ) from error
    return Group(name, hosts, bool(value and value.get("lab")))


def extended(name: str, more: Iterable[Host], home: Path) -> Group:
    """The group of that name, or a new one, with `more`; of a host that it has, the new one counts.

    Nothing is kept. UsageError for the group of a lab, which is the lab's own.
    """
    before = load(name, home) if name in names(home) else Group(name, ())
    if before.lab:
        raise UsageError(
            f"{name} is a lab, whose hosts come and go with it",
            fix="take another name for a group of your own",
        )
    hosts = {_key(host): host for host in before.hosts}
    hosts |= {_key(host): host for host in merged(more)}
    return Group(name, tuple(hosts.values()))


def written(host: Host) -> str:
    """A host as `--on` takes it (but for a configuration of its own, which has no such form)."""
    name = f"[{host.name}]" if ":" in host.name else host.name
    login = f"{host.user}@{name}" if host.user else name
    if host.port:
        return f"ssh://{login}:{host.port}"
    return login if host.slots is None else f"{login}:{host.slots}"


def save(group: Group, home: Path) -> None:
    """Keep a group, in place of one of the same name."""
    path = home / "hosts" / f"{check_name(group.name)}.json"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, group.to_json())


def remove(name: str, home: Path) -> None:
    """Forget a group; also one whose file is damaged. NotFoundError when there is none."""
    path = home / "hosts" / f"{check_name(name)}.json"
    if not path.exists():
        load(name, home)
    with storage_errors(path):
        path.unlink(missing_ok=True)


def check_name(name: str) -> str:
    """`name`, if a group may have it; else UsageError."""
    if not _GROUP.fullmatch(name):
        why = "up to 64 letters, digits, '.', '_' and '-' are allowed, first a letter or digit"
        raise UsageError(f"invalid name for a group of hosts: {name!r}", why)
    return name


def _host(entry: Any) -> Host:
    host = site.host_of(entry)
    if host is None or not _is_name(host.name):
        raise ValueError(f"{entry!r} is not a host")
    return host
