"""The room that a host has for ranks: disks, limits, memory. A few milliseconds; each run asks.

What cannot be found out is None, and an answer all the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from typing import Any, Dict, Mapping, Optional, Tuple

from shanty.runtime import cgroups, platform, proc_files
from shanty.runtime.rundir import home

_LIMITS = ("NOFILE", "NPROC", "AS", "DATA", "MEMLOCK")
_PROOF = b"shanty" * 700  # more than a file system keeps within an inode
_MANY = 16384  # a limit on processes that is not worth counting them for
_POWERS = 1 << 24 | 1 << 21  # CAP_SYS_RESOURCE, CAP_SYS_ADMIN: either lifts RLIMIT_NPROC


def room(environ: Mapping[str, str]) -> Dict[str, Any]:
    """Folders, limits and memory; sizes are in bytes.

    `limits` are `{NAME: [soft, hard]}` as in setrlimit(2), without their RLIMIT_, None for none;
    `processes` are the user's threads, None where they are not worth counting; `privileged` says
    that the limit on them does not count; `available` is the memory that is free now.
    """
    places = {
        "home": os.path.expanduser("~"),
        "shanty": str(home(environ)),
        "tmp": "/tmp",
        "shm": platform.SHARED_MEMORY,
    }
    limits = {name: _limit(name) for name in _LIMITS}
    powers = re.search(r"^CapEff:\s*(\w+)$", proc_files.read("/proc/self/status"), re.MULTILINE)
    privileged = bool(int(powers[1], 16) & _POWERS) if powers else os.geteuid() == 0
    most = (limits["NPROC"] or [None])[0]
    return {
        "folders": {name: folder(path) for name, path in places.items() if path},
        "limits": limits,
        "processes": None if privileged or most is None or most > _MANY else _threads(),
        "privileged": privileged,
        "available": available(),
    }


def folder(path: str) -> Dict[str, Any]:
    """The file system behind a folder, or behind the nearest one above that is there.

    `free` is what this user may still use. `inodes` and `inodes_free` are None where the file
    system does not count them. `error` is the name of what comes of writing a small file there
    (ENOSPC, EROFS, EACCES …), "" when that succeeds. A question that fails leaves its keys out.
    """
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    found: Dict[str, Any] = {"path": path}
    with contextlib.suppress(OSError):
        found["device"] = os.stat(path).st_dev
        status = os.statvfs(path)
        counted = status.f_files > 0
        found.update(
            size=status.f_blocks * status.f_frsize,
            free=status.f_bavail * status.f_frsize,
            inodes=status.f_files if counted else None,
            inodes_free=status.f_favail if counted else None,
            readonly=bool(status.f_flag & os.ST_RDONLY),
            noexec=bool(status.f_flag & getattr(os, "ST_NOEXEC", 0)),
        )
    found["error"] = _written(path)
    return found


def _written(path: str) -> str:
    place = os.path.join(path, f".shanty-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(place, "xb") as file:
            try:
                file.write(_PROOF)
                file.flush()
            finally:
                os.unlink(place)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EIO")
    return ""


def _limit(name: str) -> Optional[Tuple[Optional[int], Optional[int]]]:
    number = getattr(resource, "RLIMIT_" + name, None)
    if number is None:
        return None
    soft, hard = resource.getrlimit(number)
    none = resource.RLIM_INFINITY
    return (None if soft == none else soft, None if hard == none else hard)


def _threads() -> Optional[int]:
    """The threads of this user that can be seen: what RLIMIT_NPROC counts."""
    if not platform.LINUX:
        return None
    count, own = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{name}/task")
                if status.st_uid == own:
                    count += max(1, status.st_nlink - 2)
    return count


def available() -> Optional[int]:
    """The memory that can be had now without swapping, in bytes, within the control group's."""
    found = proc_files.memory().get("MemAvailable")
    bound = cgroups.memory_bound()
    used = None if bound is None else bound.used()
    if bound is None or used is None:
        return found
    left = max(0, bound.limit - used)
    return left if found is None else min(found, left)
