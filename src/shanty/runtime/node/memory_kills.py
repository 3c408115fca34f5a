"""Which of a host's ranks the kernel has ended for lack of memory.

It counts such ends, of all processes of the machine. Its log names them, where that may be read.
"""

from __future__ import annotations

import os
import re
from typing import Optional

from shanty.runtime import platform
from shanty.runtime.proc_files import read

_KNOWN = 10.0  # seconds in which a rank's end is reported after the kernel has counted it
_FIRST_NAMESPACE = "pid:[4026531836]"  # whose numbers of processes the log has


class MemoryKills:
    """The ends for lack of memory that no rank has accounted for yet. now: of the clock."""

    def __init__(self, now: float) -> None:
        self._others = self._seen = _count()  # not of our ranks, or accounted for; all, lately
        self._at = now

    def tick(self, now: float) -> None:
        """Ends of some time ago were not of our ranks."""
        if now > self._at + _KNOWN:
            self._others, self._seen = max(self._others, self._seen), _count()
            self._at = now

    def has(self, pid: int) -> bool:
        """Return whether a rank that SIGKILL has ended is one of them."""
        if _count() <= self._others or _is_named(pid) is False:
            return False
        self._others += 1
        return True


def _count() -> int:
    found = re.search(r"^oom_kill (\d+)$", read("/proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else 0


def _is_named(pid: int) -> Optional[bool]:
    """Return whether the kernel's log names this process; None where it may not be read."""
    if platform.pid_namespace() != _FIRST_NAMESPACE:
        return None
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        while True:
            try:
                line = os.read(log, 8192)
            except BrokenPipeError:  # older lines were overwritten meanwhile
                continue
            if b"Killed process %d " % pid in line:
                return True
    except OSError:  # that was the last one
        return False
    finally:
        os.close(log)
