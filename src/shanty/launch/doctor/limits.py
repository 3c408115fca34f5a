"""What a host's limits on processes (ulimit) keep a run from; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.finding import Finding, Level

_MIB, _GIB = 1 << 20, 1 << 30
# A launcher's daemon has 5 to 6 descriptors a rank and 16 of its own (see footprint.py).
_FILES, _FILES_A_RANK = 48, 6
_FILES_SCARCE = 256  # a data loader with a few workers, or a connection to each of many ranks
# A rank has up to 3 threads of its MPI's; the agents, the launcher and ssh are some 20.
_PROCESSES, _PROCESSES_A_RANK = 20, 4
_PROCESSES_SCARCE, _SCARCE_A_RANK = 64, 16  # workers of data loaders, threads of libraries
_SPACE_SCARCE = 4 * _GIB  # address space: a framework maps gigabytes that it never touches
_LOCKED = 64 * _MIB  # what a fabric's driver registers for one rank, at least
_HOW = (
    "raise it in /etc/security/limits.conf (or a unit's Limit… in systemd), or take the `ulimit` "
    "out of the login's profile"
)


def of_limits(seen: Seen, need: Need) -> Iterator[Finding]:
    """What the limits of a login keep this host's ranks from."""
    room = seen.survey["room"]
    ranks = max(1, need.ranks.get(seen.name, 1))
    soft = {name: (limit or [None])[0] for name, limit in room["limits"].items()}
    yield from _files(seen, ranks, soft["NOFILE"])
    yield from _processes(seen, ranks, soft["NPROC"], room["processes"])
    yield from _memory(seen, need, soft)


def _files(seen: Seen, ranks: int, limit: int | None) -> Iterator[Finding]:
    needed = _FILES + ranks * _FILES_A_RANK
    if limit is None or limit >= max(needed, _FILES_SCARCE):
        return
    hard = seen.survey["room"]["limits"]["NOFILE"][1]
    more = "" if hard is None or hard > limit else f", and the user may not raise it ({hard})"
    yield Finding(
        "files-limit",
        Level.ERROR if limit < needed else Level.WARNING,
        seen.name,
        f"a process may open {limit} files only",
        f"ulimit -n is {limit}{more}; {ranks} ranks need {needed}, and what they open themselves",
        _HOW,
    )


def _processes(seen: Seen, ranks: int, limit: int | None, used: int | None) -> Iterator[Finding]:
    if limit is None:
        return
    left = limit - (used or 0)
    needed = _PROCESSES + ranks * _PROCESSES_A_RANK
    if left >= _PROCESSES_SCARCE + ranks * _SCARCE_A_RANK:
        return
    counted = "" if used is None else f", and {used} are there"
    yield Finding(
        "processes-limit",
        Level.ERROR if left < needed and not seen.survey["room"]["privileged"] else Level.WARNING,
        seen.name,
        f"the user may have {limit} processes and threads only",
        f"ulimit -u is {limit}{counted}; {ranks} ranks take {needed} and more",
        _HOW,
    )


def _memory(seen: Seen, need: Need, soft: dict[str, Any]) -> Iterator[Finding]:
    needed = need.footprint.address_space + need.memory
    for name, flag in (("AS", "-v"), ("DATA", "-d")):
        limit = soft[name]
        if limit is not None and limit < max(needed, _SPACE_SCARCE):
            yield Finding(
                "memory-limit",
                Level.ERROR if limit < needed else Level.WARNING,
                seen.name,
                f"a process may use {limit >> 20} MiB of memory only",
                f"ulimit {flag} is {limit >> 10} (KiB); a rank needs {needed >> 20} MiB and more",
                _HOW,
            )
            return
    locked = soft["MEMLOCK"]
    if seen.survey["fabrics"] and locked is not None and locked < _LOCKED:
        yield Finding(
            "memory-limit",
            Level.WARNING,
            seen.name,
            f"a process may lock only {locked >> 10} KiB of memory: too little for a fast network",
            f"ulimit -l is {locked >> 10} (KiB); the host has {', '.join(seen.survey['fabrics'])}",
            "set memlock to unlimited in /etc/security/limits.conf",
        )
