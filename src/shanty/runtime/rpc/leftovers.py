"""Remains of runs and MPI jobs that ended: files that nobody has open, and processes.

Only this user's, and only what is surely nobody's any more: a job that shanty knows nothing of may
be running beside. Processes without shanty's mark are told of, and never ended by shanty.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Set

from shanty.runtime import platform
from shanty.runtime.agent.cleanup import in_use
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.processes import DAEMONS, RANK, is_launchers
from shanty.runtime.rundir import is_run_id

_SETTLED = 60.0  # seconds; what is younger may belong to a job that is only just starting
_SHOWN = 20
# A launcher gives one of these to each rank.
_RANKS = tuple(f"{name}=".encode() for name in RANK)
_MARK = b"SHANTY_RUN_ID="
_AGENTS = (b"agent.start", b"agent.worker_agent")


# ---------------------------------------------------------------------------------- files


def files_left() -> Dict[str, Dict[str, Any]]:
    """`{folder: {"count", "bytes", "paths"}}` of `paths_left`; `paths` are the first few."""
    return {
        folder: {"count": len(left), "bytes": sum(map(_size, left)), "paths": left[:_SHOWN]}
        for folder, left in paths_left().items()
    }


def paths_left() -> Dict[str, List[str]]:
    """What MPI jobs left in /dev/shm and in /tmp and nobody has open; a folder only if any."""
    shared = {name for each in FLAVOURS.values() for name in each.shared_memory_files}
    temporary = {name for each in FLAVOURS.values() for name in each.temporary_files}
    used: Optional[Set[str]] = None
    found = {}
    for folder, patterns in ((platform.SHARED_MEMORY, shared), ("/tmp", temporary)):
        paths = [
            path
            for pattern in (patterns if folder else ())
            for path in glob.glob(os.path.join(folder, pattern))
            if _is_settled(path)
        ]
        if paths and used is None:
            used = in_use()
        left = [
            path
            for path in paths
            if not any(f"{one}/".startswith(f"{path}/") for one in used or ())
        ]
        if left:
            found[folder] = sorted(set(left))
    return found


def _is_settled(path: str) -> bool:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_uid == os.getuid() and status.st_ctime < time.time() - _SETTLED
    return False


def _size(path: str) -> int:
    """The room that a file, or all within a folder, takes."""
    total = 0
    inside = (os.path.join(place, name) for place, _, names in os.walk(path) for name in names)
    for one in (path, *inside):
        with contextlib.suppress(OSError):
            total += os.lstat(one).st_blocks * 512
    return total


# ------------------------------------------------------------------------------ processes


def orphans() -> List[Dict[str, Any]]:
    """The processes that outlived their run: `{"pid", "name", "run", "since"}`, seconds of age.

    They bear the mark of one of shanty's runs whose agents are gone; or they are ranks, or
    daemons without ranks, of any MPI that have lost their parent.
    """
    table = platform.processes()
    parents = {entry.parent for entry in table.values()}
    heirs = _heirs(table)
    alive: Dict[str, bool] = {}
    found = []
    for entry in table.values():
        words = _environment(entry.pid)
        mark = next((word for word in words if word.startswith(_MARK)), b"")
        run = mark[len(_MARK) :].decode(errors="replace")
        name = _name(entry.pid)
        age = _age(entry.born)
        if is_run_id(run):
            if run not in alive:
                alive[run] = _has_agents(run, table)
            lost = not alive[run]
        else:
            is_rank = any(word.startswith(_RANKS) for word in words)
            idle = name in DAEMONS and entry.pid not in parents
            lost = entry.parent in heirs and age > _SETTLED and (is_rank or idle)
        if lost and entry.pid != os.getpid():
            found.append({"pid": entry.pid, "name": name, "run": run, "since": age})
    return found


def _heirs(table: Mapping[int, platform.Process]) -> Set[int]:
    """The processes that get the children of the dead: the first, and a user's own systemd."""
    found = {pid for pid in table if _name(pid) == "systemd"}
    if not is_launchers(_name(1)):  # in a container that may be mpirun, with its own ranks
        found.add(1)
    return found


def _environment(pid: int) -> List[bytes]:
    """The variables of a process of this user's; none of anybody else's."""
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.getuid():
            return _read(pid, "environ").split(b"\0")
    return []


def _has_agents(run: str, table: Mapping[int, platform.Process]) -> bool:
    """True when an agent of that run is there: it has the run's folder among its arguments."""
    for pid in table:
        words = _read(pid, "cmdline").split(b"\0")
        if any(word in _AGENTS for word in words) and any(run.encode() in word for word in words):
            return True
    return False


def _name(pid: int) -> str:
    """The name of the program, or of the script that an interpreter runs."""
    kernel = _read(pid, "comm").decode(errors="replace").strip()
    if kernel in DAEMONS:
        return kernel
    first = _read(pid, "cmdline").partition(b"\0")[0].decode(errors="replace")
    return os.path.basename(first) or kernel


def _age(born: str) -> float:
    """Seconds since a process began, by the ticks since the boot at which it did."""
    with contextlib.suppress(OSError, ValueError), open("/proc/uptime") as file:
        return float(file.read().split()[0]) - int(born) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
