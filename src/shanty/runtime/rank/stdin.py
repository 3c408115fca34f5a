"""Gives rank 0 the standard input of the run without going through the launcher.

Launchers forward it, but neither Open MPI 5 nor MPICH passes on the end of a pipe: the rank
then waits for ever. On Linux rank 0 opens the very file behind its launcher's (or node agent's)
descriptor; elsewhere, and for a socket, the launcher's forwarding has to do.
"""

from __future__ import annotations

import os

VARIABLE = "SHANTY_STDIN"


def offer(fd: int) -> str:
    """Returns the value of VARIABLE with which rank 0 finds the file behind our descriptor `fd`."""
    return f"{os.uname().nodename}|/proc/{os.getpid()}/fd/{fd}"


def set_aside() -> int | None:
    """Move our standard input to another descriptor, that children keep; None if it can't be."""
    if not os.path.exists("/proc/self/fd/0"):
        return None
    kept = os.dup(0)
    os.set_inheritable(kept, True)
    close()
    return kept


def close() -> None:
    """Make our standard input an empty one."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0, inheritable=True)
    os.close(null)


def take(offered: str) -> None:
    """Make the offered file our standard input, at the place where it was read to."""
    host, _, path = offered.partition("|")
    if host != os.uname().nodename:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # whoever wrote to a FIFO may be gone
    except OSError:  # a socket cannot be opened this way
        return
    os.set_blocking(fd, True)
    try:
        with open(path.replace("/fd/", "/fdinfo/")) as file:
            os.lseek(fd, int(file.readline().split()[1]), os.SEEK_SET)
    except (OSError, ValueError, IndexError):
        pass  # a pipe has no place
    os.dup2(fd, 0, inheritable=True)
    os.close(fd)
