"""Stands between the launcher and its daemon on another host, in an elastic run.

PRRTE ends all ranks when it loses a daemon, whatever its options say. So the daemon connects to the
process that stands for its ssh, and that to the launcher. When the daemon's connection ends, the
launcher's stays open until the controller has said whether the daemon has ended or is lost: the
launcher never learns of a loss.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from typing import List, Optional, Tuple

# In the arguments of PRRTE's daemons: tcp://10.0.0.1,10.1.0.1:43781:24,24
_URI = re.compile(r"(tcp6?://)(\[[^\]]*\]|[^:;\s\"]+):(\d+)")
_PIECE = 1 << 16


class DaemonRelay:
    """Listens for one daemon. command: starts it, with this relay for the launcher."""

    def __init__(self, command: str) -> None:
        self.command = command
        self._targets: List[Tuple[str, int]] = []
        self._daemons: List[socket.socket] = []
        self._lost = False
        for uri in _URI.finditer(command):  # one for IPv4 and one for IPv6
            addresses = uri[2].strip("[]").split(",")
            self._targets += [(address, int(uri[3])) for address in addresses]
        if not self._targets:
            return
        self._listener = _listener(ipv6=any(":" in address for address, _ in self._targets))
        port = self._listener.getsockname()[1]
        self.command = _URI.sub(lambda uri: f"{uri[1]}{uri[2]}:{port}", command)
        threading.Thread(target=self._listen, daemon=True).start()

    def lose(self) -> None:
        """The daemon is lost: what the launcher says to it is dropped from now on."""
        self._lost = True
        for daemon in self._daemons:
            _shut(daemon)

    def _listen(self) -> None:
        while True:
            try:
                daemon, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(daemon,), daemon=True).start()

    def _carry(self, daemon: socket.socket) -> None:
        """Pass on what a daemon says, to the end of its connection and no further."""
        with daemon:
            data = _received(daemon)
            launcher = self._connected() if data and not self._lost else None
            if launcher is None:
                return
            self._daemons.append(daemon)
            threading.Thread(target=self._carry_back, args=(launcher, daemon), daemon=True).start()
            while data and _sent(launcher, data):
                data = _received(daemon)

    def _carry_back(self, launcher: socket.socket, daemon: socket.socket) -> None:
        with launcher:
            while data := _received(launcher):
                _sent(daemon, data)
        if self._lost:
            os._exit(0)  # the launcher has ended, and nothing else ends this process
        _shut(daemon)

    def _connected(self) -> Optional[socket.socket]:
        for target in self._targets:
            try:
                return socket.create_connection(target)
            except OSError:
                continue
        return None


def _listener(*, ipv6: bool) -> socket.socket:
    """Listen at any port; where ranks are held to some, as by a firewall, at one of these."""
    from shanty.runtime.mpi.openmpi import OpenMPI5

    def listen(port: int) -> socket.socket:
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        both = ipv6 and socket.has_dualstack_ipv6()
        return socket.create_server(("", port), family=family, backlog=16, dualstack_ipv6=both)

    first, last = OpenMPI5().ports(os.environ) or (0, 0)
    for port in range(last, first - 1, -1):
        try:
            return listen(port)
        except OSError:  # it is taken
            continue
    return listen(0)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(_PIECE)
    except OSError:
        return b""


def _sent(sink: socket.socket, data: bytes) -> bool:
    try:
        sink.sendall(data)
    except OSError:
        return False
    return True


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is down already
        return
