"""Notices that a process of the launcher is gone while ranks that it has started are still on."""

from __future__ import annotations

import os
from typing import Dict, List, Tuple

from shanty.runtime import platform
from shanty.runtime.mpi.processes import is_launchers


class LauncherWatch:
    """Knows which process of the launcher, its daemon on this host, has started each rank."""

    def __init__(self) -> None:
        self._parents: Dict[int, Tuple[int, str]] = {}  # pid and name, by the pid of `rank.exec`

    def note(self, pid: int) -> None:
        """Note the parent of a rank that has just started."""
        rank = platform.process(pid)
        command = platform.command(rank.parent) if rank is not None else []
        name = os.path.basename(command[0]) if command else ""
        if rank is not None and is_launchers(name):
            self._parents[pid] = rank.parent, name

    def ended(self, pid: int, *, orphaned: bool) -> str:
        """Forget a rank that has ended; return what it had lost: "prted (pid 7)", or ""."""
        parent = self._parents.pop(pid, None)
        return _named(parent) if parent is not None and orphaned else ""

    def lost(self) -> List[Tuple[int, str]]:
        """Return the ranks that have lost their parent since the last call, and that parent."""
        found = []
        for pid, parent in list(self._parents.items()):
            rank = platform.process(pid)
            if rank is not None and rank.state != "Z" and rank.parent != parent[0]:
                del self._parents[pid]
                found.append((pid, _named(parent)))
        return found


def _named(parent: Tuple[int, str]) -> str:
    return f"{parent[1]} (pid {parent[0]})"
