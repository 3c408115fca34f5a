"""Finds out whether a program waits for the standard input that it has been given.

What is sent to a program that does not read is lost to the shell around it: of the lines of
`while read x; do shanty run --on hosts …; done`, all but the first would go to the first run.
"""

from __future__ import annotations

import os
from typing import Iterator

from shanty.runtime import platform
from shanty.runtime.proc_files import read

# System calls that read from a descriptor, their first argument; those that wait for several
# descriptors, with the index of the argument that is their number; those of epoll.
_READS = {"x86_64": (0, 19), "aarch64": (63, 65)}
_WAITS = {"x86_64": {7: 1, 271: 1, 23: 0, 270: 0}, "aarch64": {73: 1, 72: 0}}
_EPOLLS = {"x86_64": (232, 281), "aarch64": (22,)}
_OURS = "shanty/runtime/boot.py"  # an agent, or `rank.exec`


def wait_for_input(path: str) -> bool:
    """Return True when a process whose standard input is the FIFO `path` may be waiting for it.

    True also where the system does not say.
    """
    if not platform.LINUX or os.uname().machine not in _READS:
        return True
    fifo = os.stat(path)
    return any(_waits(pid, fifo) for pid in _with_input(fifo))


def _with_input(fifo: os.stat_result) -> Iterator[int]:
    """Yield the processes that have the FIFO as their standard input, but for shanty's own."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if _is(f"/proc/{pid}/fd/0", fifo) and _OURS not in read(f"/proc/{pid}/cmdline"):
            yield pid


def _is(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except OSError:  # another user's, or it has ended
        return False


def _waits(pid: int, fifo: os.stat_result) -> bool:
    """Return True when a thread reads the FIFO, or the main thread waits for several files."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        return any(_may_read(pid, thread, fifo) for thread in threads)
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or a thread: the next look
        return False
    except OSError:  # not to be known: a security module forbids it
        return True


def _may_read(pid: int, thread: int, fifo: os.stat_result) -> bool:
    call = platform.system_call(pid, thread)
    if not call:
        return False
    number, *arguments = call
    machine = os.uname().machine
    if number in _READS[machine]:
        return _is(f"/proc/{pid}/fd/{arguments[0]}", fifo)
    count = _WAITS[machine].get(number)
    waits = number in _EPOLLS[machine] or (count is not None and arguments[count] > 0)
    return waits and thread == pid
