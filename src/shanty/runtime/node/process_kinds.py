"""What a process of a run is, by its command line."""

from __future__ import annotations

import contextlib
import os


def is_tracker(pid: int) -> bool:
    """True for the process of multiprocessing, or of joblib, that removes leftover resources."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"resource_tracker" in file.read()
    return False


def serves_launcher(pid: int) -> bool:
    """True for a process of the launcher itself: a daemon, or its connection to another host."""
    from shanty.runtime.mpi.processes import is_launchers

    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        name = os.path.basename(words[0]).decode(errors="replace")
        return is_launchers(name) or b"rank.rsh_client" in words
    return True
