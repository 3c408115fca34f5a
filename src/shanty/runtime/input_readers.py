"""Finds out whether a program waits for the standard input that it has been given.

What is sent to a program that does not read is lost to the shell around it: of the lines of
`while read x; do shanty run --on hosts …; done`, all but the first would go to the first run.
"""

from __future__ import annotations

import os
import re
from typing import Iterator

from shanty.runtime import platform
from shanty.runtime.proc_files import read

# Functions of the kernel in which a thread sleeps that reads from a pipe, or waits for one of
# several files, of which the pipe may be one.
_READS, _WAITS = re.compile("pipe|partner"), re.compile("poll|select")
_OURS = "shanty/runtime/boot.py"  # an agent, or `rank.exec`


def wait_for_input(path: str) -> bool:
    """Return True when a process whose standard input is the FIFO `path` may be waiting for it.

    True also where the system does not say.
    """
    if not platform.LINUX:
        return True
    fifo = os.stat(path)
    return any(_waits(pid) for pid in _with_input(fifo))


def _with_input(fifo: os.stat_result) -> Iterator[str]:
    """Yield the processes that have the FIFO as their standard input, but for shanty's own."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            same = os.path.samestat(os.stat(f"/proc/{pid}/fd/0"), fifo)
        except OSError:  # another user's, or it has ended
            continue
        if same and _OURS not in read(f"/proc/{pid}/cmdline"):
            yield pid


def _waits(pid: str) -> bool:
    """Return True when a thread reads a pipe, or the main thread waits for one of several files."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    for thread in threads:
        folder = f"/proc/{pid}/task/{thread}"
        sleeps = read(f"{folder}/stat").rpartition(")")[2].split()[:1] in (["S"], ["D"])
        where = read(f"{folder}/wchan")
        if sleeps and (where in ("", "0") or _READS.search(where)):
            return True
        if sleeps and thread == pid and _WAITS.search(where):
            return True
    return False
