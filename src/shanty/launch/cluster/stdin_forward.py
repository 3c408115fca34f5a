"""Brings this process's standard input to rank 0 on another host, for as long as we live."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from shanty.launch.cluster import contact
from shanty.launch.host import Host
from shanty.runtime.errors import ShantyError

_CHUNK = 32 << 10  # bytes; half of what a FIFO holds
_WAIT = 1.0  # seconds that the host waits for room


def has_input(fd: int) -> bool:
    """True when there may be something to read: it is no empty device."""
    status, null = os.fstat(fd), Path(os.devnull).stat()
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == null.st_rdev)


def start(lead: Host, run: str, fd: int) -> None:
    """Begin to feed the run from `fd`, of which a copy is kept."""
    source = os.dup(fd)
    threading.Thread(target=_feed, args=(lead, run, source), daemon=True).start()


def _feed(lead: Host, run: str, source: int) -> None:
    try:
        (client,) = contact.connect([lead], terminal=False)
        while data := os.read(source, _CHUNK):
            while data:
                taken = client.ask("feed-run", run=run, wait=_WAIT, data=data).values["taken"]
                if taken is None:
                    return  # rank 0 has closed it, or is gone
                data = data[taken:]
        client.ask("feed-run", run=run, wait=0.0)
        client.close()
    except (OSError, ShantyError):
        pass  # the run says by itself how it goes on without
    finally:
        os.close(source)
