"""Removes what the processes of a run left behind once they are gone."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import signal
import time
from typing import Callable, Iterable, List, Sequence, Set

from shanty.carry import platform


def shared_memory_of(pids: Iterable[int]) -> Set[str]:
    """The files in /dev/shm that the processes have mapped now."""
    root = platform.SHARED_MEMORY + "/"
    found: Set[str] = set()
    if platform.SHARED_MEMORY:
        for pid in pids:
            found.update(path for path in platform.mapped_files(pid) if path.startswith(root))
    return {path.split(" (deleted)")[0] for path in found}


def end_all(members: Callable[[], List[platform.Process]]) -> None:
    """SIGKILL what `members` finds until it finds nothing, for five seconds at most."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        left = members()
        if not left:
            return
        platform.send(left, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def folders(scratch: str) -> List[str]:
    """The folders that a run has to itself: session files, and segments of shared memory."""
    found = [scratch]
    if platform.SHARED_MEMORY:
        found.append(os.path.join(platform.SHARED_MEMORY, os.path.basename(scratch)))
    return found


def sweep(scratch: str, own: Iterable[str], patterns: Sequence[str], since: float) -> List[str]:
    """Remove the run's own folders, the files `own`, and forgotten shared memory.

    Forgotten are files in /dev/shm that match `patterns`, belong to this user, are younger than
    `since` (seconds since 1970) and that no process has open or mapped: another job that is
    still starting holds what it has made. Returns what was removed.
    """
    removed = []
    for folder in folders(scratch):
        if os.path.isdir(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(scratch))  # the last run of this user takes it along
    forgotten = _forgotten(patterns, since)
    if forgotten:
        forgotten -= in_use()
    for path in forgotten | set(own):
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed.append(path)
    return removed


def _forgotten(patterns: Sequence[str], since: float) -> Set[str]:
    found: Set[str] = set()
    if not platform.SHARED_MEMORY:
        return found
    with contextlib.suppress(OSError):
        for entry in os.scandir(platform.SHARED_MEMORY):
            if not any(fnmatch.fnmatch(entry.name, pattern) for pattern in patterns):
                continue
            with contextlib.suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                ours = stat.st_uid == os.getuid() and stat.st_ctime >= since
                if ours and entry.is_file(follow_symlinks=False):
                    found.add(entry.path)
    return found


def in_use() -> Set[str]:
    """What any process has open or mapped, as far as this user may see."""
    used: Set[str] = set()
    for pid in platform.processes():
        used |= platform.mapped_files(pid)
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(fd.path))
    return used
