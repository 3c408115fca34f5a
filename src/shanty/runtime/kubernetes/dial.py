"""Starts a command in another pod of the run: `boot.py kubernetes.dial ADDRESS PORT COMMAND…`.

To the controller it is what ssh is on hosts: its three streams are the command's, and it ends with
the command's exit code, or with 255 when it could not be started.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from typing import List

from shanty.runtime.kubernetes import pod

_FAILED = 255  # as ssh
_CONNECTING = 10.0  # seconds for the other pod to answer
_CHUNK = 1 << 16


def main(argv: List[str]) -> int:
    """Run the command; see the module."""
    address, port, *command = argv
    try:
        with open(pod.KEY, "rb") as file:
            key = file.read().strip()
        link = socket.create_connection((address, int(port)), _CONNECTING)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line = pod.call(link, key)
        link.settimeout(None)
        line.send(pod.OPEN, json.dumps({"argv": command}).encode())
    except (OSError, pod.WrongKeyError) as error:
        words = (isinstance(error, OSError) and error.strerror) or str(error)
        print(f"shanty: {address} port {port}: {words}", file=sys.stderr)
        return _FAILED
    threading.Thread(target=_send, args=(line,), daemon=True).start()
    return _receive(line)


def _send(line: pod.Line) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _CHUNK):
            line.send(pod.DATA, data)
        line.send(pod.DATA)


def _receive(line: pod.Line) -> int:
    try:
        while (frame := line.receive()) is not None:
            kind, data = frame
            if kind == pod.END:
                return int(data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(2 if kind == pod.ERR else 1, rest) :]
    except (OSError, pod.WrongKeyError) as error:
        print(f"shanty: the connection to the pod broke: {error}", file=sys.stderr)
        return _FAILED
    print("shanty: the pod's end of the connection closed it", file=sys.stderr)
    return _FAILED
