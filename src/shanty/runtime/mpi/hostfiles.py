"""Reads and writes host files and host lists in the two dialects: `host slots=2` and `host:2`.

Each dialect is an error, or worse, in the other: Open MPI 5 takes "host:2" for a host's name,
finds that it is itself, and starts every rank on one machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Set, Tuple

from shanty.runtime.counted import counted
from shanty.runtime.errors import UsageError
from shanty.runtime.suggestions import nearest, place

Read = Callable[[str], Optional[str]]  # gives the text of a file, None where it cannot be read

# The run's own host file, in a line that no shell has read.
OWN = ("$HOSTFILE", "${HOSTFILE}")
# Where other platforms put the host file that they write.
FOREIGN_HOSTFILES = frozenset(
    ("/generated/hostfile", "/kube-openmpi/generated/hostfile", "/etc/mpi/hostfile", *OWN)
)
FORMS = (
    "a line is HOST slots=N (Open MPI, DeepSpeed) or HOST:N (MPICH, Intel MPI); "
    'MLX has [{"ssh": "HOST", "ips": [...]}, ...]'
)
MOST_SLOTS = 1 << 16
_OPENMPI_SLOTS = ("slots", "count", "cpu")  # these mean the same to Open MPI
_MOST = tuple(
    name
    for word in _OPENMPI_SLOTS
    for name in (f"max_{word}", f"max-{word}", f"{word}_max", f"{word}-max")
)
_KNOWN = ("slot", *_OPENMPI_SLOTS, *_MOST)
# What others read and shanty does not, and what to write instead.
_USER = "write the user before the host, as {value}@{host}"
_REFUSED = {
    **dict.fromkeys(("user", "username", "user_name", "user-name"), _USER),
    "port": "name the port in ~/.ssh/config, or write ssh://{host}:{value} for `shanty run`",
    "ifname": "leave it out: a run finds the network itself",
}
_MLX_KEYS, _MLX_HOST_KEYS = ("backend", "envs", "hosts"), ("ssh", "ips", "rdma")
# A line of another file may begin with an IPv6 address in brackets, which is not JSON.
_JSON = re.compile(r"\s*[\[{](?![0-9A-Fa-f:.%\w]*:[^\]\s\"]*\])")
_COMMENT = re.compile(r"#|(?:^|(?<=\s))//")
_NUMBER = re.compile(r"[0-9]{1,9}")
_COUNTED = re.compile(r"(\[[^\]]+\]|[^:]+):(.*)", re.DOTALL)
_HOST = re.compile(  # a name, or an address of IPv6
    r"(?:[\w.][\w.$+-]*@)?(?:\w[\w-]*(?:\.\w[\w-]*)*\.?|[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){2,}(?:%\w+)?)"
)


class Line(NamedTuple):
    """A line of a host file: where it is, the word that names the host, and the rest.

    `slots` are those of a setting, None without one. `dialect` is whose form the settings have:
    "openmpi", "hydra", "plain" where there are none, "other" where no launcher reads it so.
    """

    where: str
    host: str
    slots: Optional[int]
    dialect: str


@dataclass(frozen=True)
class Named:
    """One host as a file or list names it; `slots` is None where it says none."""

    name: str
    slots: Optional[int] = None

    @property
    def count(self) -> int:
        """The number of its slots: one where it says none."""
        return 1 if self.slots is None else self.slots


def read_file(path: str) -> Optional[str]:
    """Returns the text of a file, None when there is none that can be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None


def hosts_in(text: str, source: str = "the host file") -> Tuple[Named, ...]:
    """Returns the hosts of a file in either dialect, each once, with the sum of its slots.

    A host that is named several times has one slot for each time, unless it says otherwise.
    UsageError names the line of the file `source` that is not a host's.
    """
    return merged(named for named, _ in _named(text, source))


def hosts_listed(text: str) -> Tuple[Named, ...]:
    """Returns the hosts of a list, "a:2,b", each once; names without a number have no slots.

    UsageError for a part that is not a host.
    """
    return merged(_counted(part.strip(), text)[0] for part in text.split(",") if part.strip())


def dialects_in(text: str) -> Set[str]:
    """Returns whose dialects the lines of a host file are in; see `Line`."""
    return {dialect for _, dialect in _named(text, "")}


def listed(hosts: Iterable[Named]) -> str:
    """Returns a host list that both dialects read: "a:2,b"."""
    return ",".join(h.name if h.slots is None else f"{h.name}:{h.slots}" for h in hosts)


def lines(text: str, source: str) -> Iterator[Line]:
    """Yields the lines of a host file that name hosts, and the entries of one of MLX's, in JSON.

    UsageError, with the number of the line, for a setting that is not known or has no number.
    """
    odd = text.startswith("\ufeff") or "\r" in text  # launchers do not read past these
    text = text.lstrip("\ufeff")
    if _JSON.match(text):
        yield from _entries(text, source)
        return
    for number, line in enumerate(text.splitlines(), 1):
        first, *words = re.sub(r"\s*=\s*", "=", _COMMENT.split(line, 1)[0]).split() or [""]
        if not first:
            continue
        where = f"{source}, line {number}"
        given = [_setting(word, first, where) for word in words]
        slots = [number for key, number in given if key not in _MOST]
        if len(slots) > 1:
            raise UsageError(f"{where}: the slots of {first} are given twice", fix="give them once")
        most = [number for key, number in given if key in _MOST]
        if slots and most and slots[0] > min(most):
            raise UsageError(
                f"{where}: {first} has {counted(slots[0], 'slot')}, more than its largest number, "
                f"{min(most)}",
                fix="give max_slots a number that is not below slots",
            )
        dialect = "openmpi" if given else "plain"
        if odd or "//" in line or any(word.startswith("slot=") for word in words):
            dialect = "other"
        # Open MPI takes the largest number of slots where it has no other.
        yield Line(where, first, next(iter(slots or most), None), dialect)


def mlx_table(text: str, source: str) -> Dict[str, Any]:
    """Returns what a host file of MLX holds, in JSON: "hosts", and maybe "backend" and "envs".

    UsageError for what is not one.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise UsageError(f"{source}, line {line}: invalid JSON", str(error), FORMS) from None
    table = value if isinstance(value, dict) else {"hosts": value}
    entries = table.get("hosts")
    if not isinstance(entries, list):
        raise UsageError(f"{source}: it has no list of hosts", fix=FORMS)
    if not isinstance(table.get("envs", []), list):
        raise UsageError(f"{place(source, text, 'envs')}: envs must be a list", fix=FORMS)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("ssh"), str):
            raise UsageError(f'{source}, entry {number}: it has no "ssh"', fix=FORMS)
    for one, known in ((table, _MLX_KEYS), *((entry, _MLX_HOST_KEYS) for entry in entries)):
        for key in one:
            if key not in known:
                fix = nearest(key, known, f"the keys are {', '.join(known)}")
                raise UsageError(f"{place(source, text, key)}: unknown key {key!r}", fix=fix)
    for variable in table.get("envs", []):
        if not isinstance(variable, str):
            raise UsageError(f"{source}: {variable!r} in envs must be a text, as NAME=VALUE")
    return table


def _entries(text: str, source: str) -> Iterator[Line]:
    """Yields a host for each entry: MLX starts one process for it, so each is one slot."""
    table = mlx_table(text, source)
    if table.get("envs"):
        raise UsageError(
            f"{place(source, text, 'envs')}: envs are for mlx.launch, and ranks would not get them",
            fix="give them with -e, or run mlx.launch --hostfile FILE",
        )
    for number, entry in enumerate(table["hosts"], 1):
        yield Line(f"{source}, entry {number}", entry["ssh"], 1, "other")


def _setting(word: str, host: str, where: str) -> Tuple[str, int]:
    """Returns the key and the number of a word after a host."""
    written, equals, value = word.partition("=")
    key = written.lower()
    if equals and key in _REFUSED:
        fix = _REFUSED[key].format(value=value, host=host.partition(":")[0])
        raise UsageError(f"{where}: {written}= is not supported", fix=fix)
    if not equals or key not in _KNOWN:
        fix = f"did you mean slots={word}?" if _NUMBER.fullmatch(word) else ""
        name = re.split(r"[^\w-]", key)[0]
        raise UsageError(
            f"{where}: unknown setting {word!r}", FORMS, fix or nearest(name, _KNOWN[1:])
        )
    if not _NUMBER.fullmatch(value) or int(value) > MOST_SLOTS:
        raise UsageError(
            f"{where}: {written} takes a number from 0 to {MOST_SLOTS}, not {value!r}", FORMS
        )
    return key, int(value)


def _named(text: str, source: str) -> Iterator[Tuple[Named, str]]:
    for line in lines(text, source):
        named, dialect = _counted(line.host, line.where)
        if line.slots is not None and named.slots is not None:
            raise UsageError(
                f"{line.where}: the slots of {named.name} are given twice", fix="give them once"
            )
        slots = line.slots if named.slots is None else named.slots
        yield Named(named.name, slots), dialect if line.dialect == "plain" else line.dialect


def _counted(word: str, where: str) -> Tuple[Named, str]:
    """Returns the host that a word names, with its slots, and whose dialect that is."""
    match = None if word.count(":") > 1 and not word.startswith("[") else _COUNTED.fullmatch(word)
    name, number = match.groups() if match else (word, None)
    plain = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if not _HOST.fullmatch(plain):
        why = "only hosts can be named, not left out" if name.startswith("^") else ""
        raise UsageError(f"{where}: {word!r} does not name a host", why, FORMS)
    if number is None:
        return Named(plain), "plain"
    if not _NUMBER.fullmatch(number) or int(number) > MOST_SLOTS:
        raise UsageError(
            f"{where}: {name} takes a number of slots from 0 to {MOST_SLOTS}, not {number!r}", FORMS
        )
    return Named(plain, int(number)), "hydra"


def merged(hosts: Iterable[Named]) -> Tuple[Named, ...]:
    """Returns each host once, with the sum of its slots."""
    found: Dict[str, Named] = {}
    for host in hosts:
        before = found.get(host.name)
        found[host.name] = Named(host.name, before.count + host.count) if before else host
    return tuple(found.values())
