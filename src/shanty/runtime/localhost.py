"""Tells which names of hosts mean this machine, and which of its ports is free."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, List

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_SLOTS = re.compile(r":\d+$")
_LOWEST = 10000  # of the ports that are tried; below are those of known services
_EPHEMERAL = 32768  # the first of Linux by default; those of other systems begin later
_TRIES = 20  # for each port, before the system is asked for any


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
    """Returns so many TCP ports that are free on this host now, each another one.

    They are below the ports that the system gives to programs that ask for any port. So no other
    connection takes one by chance, however late it is opened.
    """
    import socket

    end = _first_ephemeral_port()
    found: Dict[int, None] = {}
    tries = _TRIES * count
    while len(found) < count:
        tries -= 1
        draw = int.from_bytes(os.urandom(4), "big")
        port = _LOWEST + draw % (end - _LOWEST) if end > _LOWEST and tries > 0 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                if port == 0:
                    raise
                continue
            port = int(probe.getsockname()[1])
        found[port] = None
    return list(found)


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL
