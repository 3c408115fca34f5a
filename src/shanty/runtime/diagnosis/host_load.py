"""Reads the load, the memory and the links of this host, and what its processes wait for."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Dict, Tuple

from shanty.runtime import platform, proc_files
from shanty.runtime.messages import HostLoad, Link
from shanty.runtime.proc_files import Counts

Counters = Tuple[Dict[str, Counts], Tuple[int, int], Tuple[int, int]]


def counters(own: Tuple[int, int]) -> Counters:
    """Returns bytes and errors of each link, the segments that TCP has sent, and sent again.

    `own` are the bytes that the ranks have sent and received.
    """
    links = {name: link for name, link in proc_files.links().items() if name != "lo"}
    return links, proc_files.tcp(), own


def look(
    since: Counters, now: Counters, seconds: float, halted: Tuple[Tuple[int, str], ...] = ()
) -> HostLoad:
    """Returns the load of this host, with what was counted between `since` and `now`."""
    (links, tcp, own), (before, tcp_before, own_before) = now, since
    memory = proc_files.memory()
    found = []
    for name, new in sorted(links.items()):
        old = before.get(name, new)
        moved = max(new[0] - old[0], new[1] - old[1])
        found.append(Link(name, _carries(name), any(new[:2]), moved, new[2] - old[2]))
    return HostLoad(
        load=round(os.getloadavg()[0], 2),
        cores=platform.usable_cores(),
        free=memory.get("MemAvailable", 0),
        total=memory.get("MemTotal", 0),
        links=tuple(found),
        tcp=(tcp[0] - tcp_before[0], tcp[1] - tcp_before[1]),
        seconds=seconds,
        own=max(own[0] - own_before[0], own[1] - own_before[1]),
        halted=halted,
    )


def _carries(name: str) -> bool:
    """False when the kernel says that an interface is down or has no carrier."""
    import fcntl
    import socket
    import struct

    request = struct.pack("16sH14x", name.encode()[:15], 0)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, 0x8913, request)  # SIOCGIFFLAGS
        flags: int = struct.unpack_from("H", answer, 16)[0]
        return flags & 0x41 == 0x41  # IFF_UP, IFF_RUNNING
    return False


_LOCK = re.compile(r"(\d+): (-> )?\S+\s+\S+\s+\S+ (-?\d+) \S+:(\d+) ")


def locks() -> Dict[int, Tuple[int, int]]:
    """Returns who waits for a lock on a file: its inode, and who holds it (0: unknown), by pid."""
    found: Dict[int, Tuple[int, int]] = {}
    holders: Dict[str, int] = {}
    with contextlib.suppress(OSError), open("/proc/locks") as file:
        for lock in filter(None, map(_LOCK.match, file)):
            if lock[2]:  # a line below that of the holder
                found[int(lock[3])] = (int(lock[4]), max(0, holders.get(lock[1], 0)))
            else:
                holders[lock[1]] = int(lock[3])
    return found


def open_file(pid: int, inode: int) -> str:
    """Returns the path of a file that the process has open, by its inode; "" when it has not."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}/fd/{name}").st_ino == inode:
                    return os.readlink(f"/proc/{pid}/fd/{name}")
    return ""
