"""Host files of others: Open MPI's and DeepSpeed's, Hydra's, and MLX's JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.launch.cluster.inventory import parse_host, usable
from shanty.launch.host import Host
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.mpi.hostfiles import hosts_in

_KNOWN = (
    "a line is HOST slots=N (Open MPI, DeepSpeed) or HOST:N (MPICH, Intel MPI); "
    'MLX has [{"ssh": "HOST", "ips": [...]}, ...]'
)
_SETTING = re.compile(r"([A-Za-z][A-Za-z_-]*)=(\S+)")
_NUMBERS = re.compile(r"slots?|max[-_]slots|slots[-_]max|count|cpu", re.IGNORECASE)
_USERS = ("user", "username", "user_name")


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file, each once, without those that have no slots.

    NotFoundError when it cannot be read; UsageError names the line that is no host's.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise NotFoundError(f"the host file {path} cannot be read", why) from error
    hosts = parse_hostfile(text, str(path))
    return usable(hosts, f"the host file {path}")


def parse_hostfile(text: str, source: str = "the host file") -> tuple[Host, ...]:
    """The hosts of a file's text, as often as they stand there."""
    if text.lstrip()[:1] in ("[", "{") and not _is_address(text.lstrip()):
        return _mlx(text, source)
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if words:
            hosts.append(_line(words, f"{source}, line {number}"))
    return tuple(hosts)


def _is_address(text: str) -> bool:
    """True where the first line is an IPv6 address in brackets, and so no JSON."""
    return bool(re.match(r"\[[0-9A-Fa-f:.%\w]*:[^\]\s\"]*\]", text))


def _line(words: list[str], where: str) -> Host:
    (named,) = hosts_in(" ".join(words))
    try:
        host = parse_host(words[0])
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", error.why, _KNOWN) from None
    host = replace(host, slots=named.slots if host.port is None else None)
    for word in words[1:]:
        setting = _SETTING.fullmatch(word)
        if setting is None:
            raise UsageError(f"{where}: {word!r} is no setting of a host", fix=_KNOWN)
        key, value = setting.groups()
        if _NUMBERS.fullmatch(key) and not (value.isascii() and value.isdigit()):
            raise UsageError(f"{where}: {value!r} is no number, in {word!r}", fix=_KNOWN)
        if key.lower() in ("slots", "slot"):
            host = replace(host, slots=int(value))
        elif key.lower() in _USERS:
            try:
                host = replace(host, user=parse_host(f"{value}@host").user)
            except UsageError:
                raise UsageError(f"{where}: {value!r} is no user", fix=_KNOWN) from None
    return host


def _mlx(text: str, source: str) -> tuple[Host, ...]:
    """MLX starts one process for each entry, so each is one slot."""
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise UsageError(f"{source}, line {line}: this is no JSON", str(error), _KNOWN) from None
    entries = value.get("hosts") if isinstance(value, dict) else value
    if not isinstance(entries, list):
        raise UsageError(f"{source}: there is no list of hosts in it", fix=_KNOWN)
    hosts = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("ssh") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise UsageError(f'{source}, entry {number}: it has no "ssh"', fix=_KNOWN)
        try:
            hosts.append(replace(parse_host(name), slots=1))
        except UsageError as error:
            raise UsageError(f"{source}, entry {number}: {error.what}", error.why, _KNOWN) from None
    return tuple(hosts)
