"""Reads and writes host files and host lists in the two dialects: `host slots=2` and `host:2`.

Each dialect is an error, or worse, in the other: Open MPI 5 takes "host:2" for a host's name,
finds that it is itself, and starts every rank on one machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, Optional, Set, Tuple

Read = Callable[[str], Optional[str]]  # gives the text of a file, None where it cannot be read

# Where other platforms put the host file that they write.
FOREIGN_HOSTFILES = frozenset(
    ("/generated/hostfile", "/kube-openmpi/generated/hostfile", "/etc/mpi/hostfile")
)
_SLOTS = re.compile(r"^slots?=(\d+)$", re.IGNORECASE)
_MAX_SLOTS = re.compile(r"^(?:max[-_]slots|slots[-_]max|count|cpu)=(\d+)$", re.IGNORECASE)
_COUNTED = re.compile(r"^(\[[^\]]+\]|[^:\s]+):(\d+)$")


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


def hosts_in(text: str) -> Tuple[Named, ...]:
    """Returns the hosts of a file in either dialect, each once, with the sum of its slots.

    A host that is named several times has one slot for each time, unless it says otherwise.
    """
    return _merged(named for named, _ in _lines(text))


def hosts_listed(text: str) -> Tuple[Named, ...]:
    """Returns the hosts of a list, "a:2,b", each once; names without a number have no slots."""
    return _merged(_counted(part)[0] for part in text.split(",") if part.strip())


def dialects_in(text: str) -> Set[str]:
    """Returns whose dialects the lines of a host file are in: "openmpi", "hydra", else "plain"."""
    return {dialect for _, dialect in _lines(text)}


def listed(hosts: Iterable[Named]) -> str:
    """Returns a host list that both dialects read: "a:2,b"."""
    return ",".join(h.name if h.slots is None else f"{h.name}:{h.slots}" for h in hosts)


def _lines(text: str) -> Iterator[Tuple[Named, str]]:
    for line in text.splitlines():
        first, *words = line.split("#", 1)[0].split() or [""]
        named, dialect = _counted(first)
        for word in words:
            slots = _SLOTS.match(word)
            if slots:
                named = Named(named.name, int(slots.group(1)))
            if slots or _MAX_SLOTS.match(word):
                dialect = "openmpi"
        if first:
            yield named, dialect


def _counted(word: str) -> Tuple[Named, str]:
    match = _COUNTED.match(word.strip())
    if match:
        return Named(match.group(1).strip("[]"), int(match.group(2))), "hydra"
    return Named(word.strip().strip("[]")), "plain"


def _merged(hosts: Iterable[Named]) -> Tuple[Named, ...]:
    found: Dict[str, Named] = {}
    for host in hosts:
        before = found.get(host.name)
        found[host.name] = Named(host.name, before.count + host.count) if before else host
    return tuple(found.values())
