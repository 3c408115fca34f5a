"""What MPI jobs that ended left in folders of this host: files that nobody has open.

Only this user's, and only what is surely nobody's any more: a job that shanty knows nothing of may
be running beside.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set

from shanty.runtime import platform
from shanty.runtime.agent.cleanup import in_use
from shanty.runtime.mpi.flavours import FLAVOURS

_SETTLED = 60.0  # seconds; what is younger may belong to a job that is only just starting
_SHOWN = 20


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
        paths = [path for path in _matching(folder, sorted(patterns)) if _is_settled(path)]
        if paths and used is None:
            used = in_use()
        left = [path for path in paths if not _is_used(path, used or set())]
        if left:
            found[folder] = sorted(left)
    return found


def _matching(folder: str, patterns: Sequence[str]) -> Iterator[str]:
    if folder:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if any(fnmatch.fnmatch(entry.name, pattern) for pattern in patterns):
                    yield entry.path


def _is_settled(path: str) -> bool:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_uid == os.getuid() and status.st_ctime < time.time() - _SETTLED
    return False


def _is_used(path: str, used: Set[str]) -> bool:
    return path in used or any(one.startswith(path + "/") for one in used)


def _size(path: str) -> int:
    """The room that a file, or all within a folder, takes."""
    total = 0
    with contextlib.suppress(OSError):
        total = os.lstat(path).st_blocks * 512
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
