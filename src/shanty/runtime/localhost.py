"""Tells which names of hosts mean this machine, and which of its ports is free."""

from __future__ import annotations

import os
import re
from typing import Iterable, List

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_SLOTS = re.compile(r":\d+$")


def is_here(name: str) -> bool:
    """Returns True for a host's name that is one of this machine's."""
    own = os.uname().nodename
    return name in (*_LOOPBACK, own, own.partition(".")[0])


def all_here(hosts: Iterable[str]) -> bool:
    """Returns True when hosts, each as [USER@]HOST[:SLOTS], are none but this machine.

    One with a port of its own (ssh://HOST:PORT) is another, whatever its name.
    """
    for host in hosts:
        name = host.rpartition("@")[2]
        if "://" in host or not (is_here(name) or is_here(_SLOTS.sub("", name))):
            return False
    return True


def free_ports(count: int) -> List[int]:
    """Returns so many TCP ports that are free on this host now, each another one."""
    import socket

    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
