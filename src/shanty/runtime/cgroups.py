"""Reads the control groups that bound this process: version 1 and 2, and both at once.

`root` is where the file system begins; only tests have another one.
"""

from __future__ import annotations

import os
from typing import List, Optional

from shanty.runtime.proc_files import read
from shanty.runtime.record import Record

_TOP = "/sys/fs/cgroup"


class CpuBound(Record):
    """A limit of CPU time: so many `cores`, for the group whose files are in `folder`."""

    cores: float
    folder: str

    def used(self) -> Optional[float]:
        """Seconds of CPU time that the group has used; None where the kernel does not say."""
        found = _field(f"{self.folder}/cpu.stat", "usage_usec")
        if found is not None:
            return found / 1e6
        # Version 1 counts in another hierarchy, which most systems have in the same place.
        for folder in (self.folder, self.folder.replace(f"{_TOP}/cpu", f"{_TOP}/cpuacct", 1)):
            text = read(f"{folder}/cpuacct.usage").strip()
            if text.isdigit():
                return int(text) / 1e9
        return None


class MemoryBound(Record):
    """A limit of memory: `limit` bytes, for the group whose files are in `folder`."""

    limit: int
    folder: str

    def used(self) -> Optional[int]:
        """Bytes in use without files that can be dropped; None where the kernel does not say."""
        for name, cached in (
            ("memory.current", "inactive_file"),
            ("memory.usage_in_bytes", "total_inactive_file"),
        ):
            text = read(f"{self.folder}/{name}").strip()
            if text.isdigit():
                droppable = _field(f"{self.folder}/memory.stat", cached) or 0
                return max(0, int(text) - droppable)
        return None


def cpu_bound(root: str = "") -> Optional[CpuBound]:
    """The least limit of CPU time, of this process's group and those above; None without one."""
    found = [CpuBound(_quota(folder), folder) for folder in folders("cpu", root)]
    return min((each for each in found if each.cores > 0), default=None)


def memory_bound(root: str = "") -> Optional[MemoryBound]:
    """The least limit of memory, likewise; one above all memory that there is may be given."""
    found = []
    for folder in folders("memory", root):
        text = read(f"{folder}/memory.max") or read(f"{folder}/memory.limit_in_bytes")
        if text.strip().isdigit():  # else "max"
            found.append(MemoryBound(int(text), folder))
    return min(found, default=None)


def folders(controller: str, root: str = "") -> List[str]:
    """Where the groups are that bound this process; a container has its own at the top."""
    top = f"{root}{_TOP}"
    found = [top, f"{top}/{controller}"]
    for line in read(f"{root}/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            hierarchy = found[0] if number == "0" else found[1]
            while path not in ("", "/"):
                found.append(hierarchy + path)
                path = os.path.dirname(path)
    return found


def _quota(folder: str) -> float:
    """Cores' worth of time that a group may use; 0 where it has no limit."""
    old = f"{folder}/cpu.cfs_"
    text = read(f"{folder}/cpu.max") or read(f"{old}quota_us") + read(f"{old}period_us")
    try:
        quota, period = map(int, text.split())
    except ValueError:  # "max", or nothing
        return 0.0
    return quota / period if quota > 0 and period > 0 else 0.0


def _field(path: str, name: str) -> Optional[int]:
    """The number behind a name, in a file with one of each a line."""
    for line in read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
