"""What tells an agent, its host and this start of the machine from others."""

from __future__ import annotations

import os
from typing import Any, Dict

from shanty.runtime import platform


def identity(pid: int) -> Dict[str, Any]:
    """A process as `agents.json` names it: its pid, and its birth, which no later one shares."""
    found = platform.process(pid)
    return {"pid": pid, "born": found.born if found else ""}


def where() -> Dict[str, Any]:
    """What tells this host, its pids and this start of the machine from others."""
    return {
        "host": os.uname().nodename,
        "pids": platform.pid_namespace(),
        "boot": platform.boot_id(),
        "session": os.environ.get("XDG_SESSION_ID", ""),
    }


def free_port() -> int:
    """A TCP port that is free on this host now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
