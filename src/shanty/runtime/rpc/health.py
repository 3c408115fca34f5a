"""Facts about a host, which the doctor checks: the verb `health`.

Every question stands alone: if it fails, its own answer is empty, and no other. Only leftovers of
this user's runs and MPI jobs are listed, and only those that are certainly not in use: a job that
shanty does not know may be running as well. Processes without shanty's mark are reported, and never
ended by shanty.
"""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from shanty.runtime import platform, stored_tree
from shanty.runtime.cleanup import in_use
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.parameters import settings
from shanty.runtime.mpi.processes import DAEMONS, RANK, is_launchers
from shanty.runtime.proc_files import read
from shanty.runtime.rpc import Ask, Data, Say, containers, runs, store
from shanty.runtime.run_agents import is_frozen
from shanty.runtime.rundir import RunDir, is_run_id

_READING = 2.0  # seconds in which contents of the store are compared
_NAMES = 2.0  # seconds for name servers; a dead one lets getaddrinfo wait for up to thirty
_AT_ONCE = 16  # names that are looked up side by side
_SHOWN = 200  # characters of a value
_SETTLED = 60.0  # seconds; what is younger may belong to a job that is only just starting
# A launcher gives one of these to each rank.
_RANKS = tuple(f"{name}=" for name in RANK)
_MARK = "SHANTY_RUN_ID="
_AGENTS = ("agent.start", "agent.worker_agent", "agent.container_lead")


def health(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`[names]`: all that the survey does not say.

    `resolves` has the addresses that each of `names`, and the host's own name, means here: an
    empty list for an unknown name, None where no answer came in time. `rights` are
    `[path, mode, owner]` of the home and of what sshd reads there. `settings` are `[name, value,
    place]`; the place is a file, or "" for the environment of a login. `leftovers` are the files
    of MPI jobs that no process has open, `orphans` the processes of runs that ended, `containers`
    the names of their containers, `crashed` the runs of which files are left.
    `time` is this host's clock at the end, `took` the seconds since
    the question came. `damaged` has the damaged items of the store, and which of their files.
    """
    began = time.monotonic()
    own = socket.gethostname()
    names = Names([own, *ask.get("names", ())])
    values: Dict[str, Any] = {
        "hostname": own,
        "rights": list(rights()),
        "settings": [[name, value[:_SHOWN], place] for name, value, place in settings(os.environ)],
        "leftovers": files_left(),
        "orphans": orphans(),
        "crashed": runs.crashed(),
        "containers": [name for name, _ in containers.left()],
        "damaged": {
            path: stored_tree.named(files)
            for path, files in store.damaged_items(began + _READING).items()
        },
    }
    values["resolves"] = names.answers(began + _NAMES)
    return {**values, "took": time.monotonic() - began, "time": time.time()}


class Names:
    """Looks names up, some side by side; a dead name server delays no other name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._found: Dict[str, Optional[List[str]]] = dict.fromkeys(names)
        self._waiting = deque(self._found)
        # Daemons, and no pool: a pool's threads would be waited for when this process ends.
        count = min(_AT_ONCE, len(self._found))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while self._waiting:
            with contextlib.suppress(IndexError):  # another thread has taken the last
                name = self._waiting.popleft()
                try:
                    found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
                    self._found[name] = sorted({str(entry[4][0]) for entry in found})
                except (OSError, UnicodeError):  # the latter for what no name can be
                    self._found[name] = []

    def answers(self, until: float) -> Dict[str, Optional[List[str]]]:
        """The answers that came until time.monotonic() is `until`; None for the others."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._waiting.clear()
        return dict(self._found)


def rights() -> Iterator[Tuple[str, int, int]]:
    """Path, mode and owner of each file or folder that sshd wants to be the user's alone."""
    home = os.path.expanduser("~")
    for path in (home, f"{home}/.ssh", f"{home}/.ssh/authorized_keys"):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            yield path, status.st_mode & 0o7777, status.st_uid


def files_left() -> Dict[str, Dict[str, Any]]:
    """`{folder: {"count", "bytes"}}` of `paths_left`."""
    return {
        folder: {"count": len(left), "bytes": sum(map(_size, left))}
        for folder, left in paths_left().items()
    }


def paths_left() -> Dict[str, List[str]]:
    """What MPI jobs left in /dev/shm and in /tmp and no process has open, by its folder."""
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
    total = 0
    inside = (os.path.join(place, name) for place, _, names in os.walk(path) for name in names)
    for one in (path, *inside):
        with contextlib.suppress(OSError):
            total += os.lstat(one).st_blocks * 512
    return total


def orphans() -> List[Dict[str, Any]]:
    """The processes that outlived their run: `{"pid", "name", "run"}`.

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
        run = next((word[len(_MARK) :] for word in words if word.startswith(_MARK)), "")
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
            found.append({"pid": entry.pid, "name": name, "run": run})
    return found


def _heirs(table: Mapping[int, platform.Process]) -> Set[int]:
    """The processes that get the children of the dead: the first, and a user's own systemd."""
    found = {pid for pid in table if _name(pid) == "systemd"}
    if not is_launchers(_name(1)):  # in a container that may be mpirun, with its own ranks
        found.add(1)
    return found


def _environment(pid: int) -> List[str]:
    """The variables of a process if it belongs to this user."""
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.getuid():
            return read(f"/proc/{pid}/environ").split("\0")
    return []


def _has_agents(run: str, table: Mapping[int, platform.Process]) -> bool:
    """True when an agent of that run is there: it has the run's folder among its arguments."""
    for pid in table:
        words = read(f"/proc/{pid}/cmdline").split("\0")
        if any(word in _AGENTS for word in words):
            folders = [word for word in words if run in word]
            if folders and not is_frozen(RunDir(Path(folders[0]))):
                return True
    return False


def _name(pid: int) -> str:
    """The name of the program, or of the script that an interpreter runs."""
    kernel = read(f"/proc/{pid}/comm").strip()
    if kernel in DAEMONS:
        return kernel
    first = read(f"/proc/{pid}/cmdline").partition("\0")[0]
    return os.path.basename(first) or kernel


def _age(born: str) -> float:
    """Seconds since a process began, by the ticks since the boot at which it did."""
    with contextlib.suppress(IndexError, ValueError):
        return float(read("/proc/uptime").split()[0]) - int(born) / os.sysconf("SC_CLK_TCK")
    return 0.0
