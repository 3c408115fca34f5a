"""Connects standard input and output to a port of a lab's host.

    python -I -S proxy_command.py SUPERVISOR-PID BIRTH ADDRESS PORT

ssh runs it as ProxyCommand. It enters the network of the lab's supervisor, so that the connection
comes from outside the host, and ends with the lab. It imports nothing of shanty, to start fast.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import socket
import sys

_KINDS = {"user": 0x10000000, "net": 0x40000000}
_CHUNK = 1 << 18
_PATIENCE = 4.0  # seconds; then the error says more than that of ssh, which cannot see the reason


def main() -> int:
    """Relays until the host closes the connection."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ssh ends us by SIGHUP, which nohup(1) ignores
    pid, born, address, port = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    try:
        watch = os.pidfd_open(pid)
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            if file.read().rpartition(") ")[2].split()[19] != born:
                raise ProcessLookupError
    except OSError:
        sys.stderr.write("shanty: this lab is gone; `shanty lab up` makes it again\n")
        return 1
    try:
        _enter(pid)
        connection = socket.create_connection((address, port), _PATIENCE)
        connection.settimeout(None)
    except OSError as error:
        sys.stderr.write(f"shanty: cannot connect to {address}:{port} in the lab: {error}\n")
        return 1
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _thread.start_new_thread(_end_with_lab, (watch,))
    _thread.start_new_thread(_send, (connection,))
    _receive(connection)
    return 0


def _enter(pid: int) -> None:
    for kind, number in _KINDS.items():
        path = f"/proc/{pid}/ns/{kind}"
        if os.stat(path).st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino:  # noqa: PTH116
            continue  # a lab of root is in the user namespace of root
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if hasattr(os, "setns"):
            os.setns(descriptor, number)
        else:
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, number) < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(descriptor)


def _end_with_lab(watch: int) -> None:
    select.select([watch], [], [])
    os._exit(1)  # its network is gone, so nothing more can arrive


def _send(connection: socket.socket) -> None:
    try:
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other direction sees the end, and ends the program


def _receive(connection: socket.socket) -> None:
    try:
        while data := connection.recv(_CHUNK):
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    except OSError:
        pass


if __name__ == "__main__":
    _code = main()
    os._exit(_code)  # a thread may still be blocked in read()
