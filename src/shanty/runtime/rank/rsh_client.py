"""Stands in for ssh where a launcher calls it, on the lead host of a run over several hosts.

The controller has an agent on each host already; it is asked to start the launcher's daemon there.
Any other use of ssh, and any other host, gets the real one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import List, Tuple

from shanty.runtime import platform
from shanty.runtime.lines.leading_options import split, ssh_takes_value
from shanty.runtime.mpi.processes import DAEMONS

SOCKET = "SHANTY_SSH"  # the environment variable with the path of the controller's socket
LOST = b'"lost"\n'  # the controller's word that an elastic run has lost the daemon
_ELASTIC = "SHANTY_ELASTIC"


def main(argv: List[str]) -> int:
    """Have the controller start the command, or become the real ssh."""
    host, command = parse(argv)
    if host and any(daemon in command for daemon in DAEMONS):
        code = _ask(host, command)
        if code is not None:
            return code
    from shanty.runtime.lines.command import become_next  # rarely needed

    become_next("ssh", argv, os.path.dirname(os.environ.get("SHANTY_SHIM", "")))
    print("shanty: ssh is not on PATH", file=sys.stderr)
    return 255


def parse(words: List[str]) -> Tuple[str, str]:
    """Return the host and the command of an ssh line, "" where there is none."""
    _, index = split(words, ssh_takes_value)
    if index >= len(words):
        return "", ""
    host, rest = words[index], words[index + 1 :]
    _, index = split(rest, ssh_takes_value)  # ssh takes options after the host, too
    return host.rpartition("@")[2], " ".join(rest[index:])


def _ask(host: str, command: str) -> int | None:
    """Return the exit code of `command` on `host`, from its agent; None if it has none."""
    relay = None
    if _ELASTIC in os.environ:
        from shanty.runtime.rank.daemon_relay import DaemonRelay

        relay = DaemonRelay(command)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with platform.socket_path(os.environ[SOCKET]) as name:
            connection.connect(name)
        relayed = command if relay is None else relay.command
        message = json.dumps({"host": host, "command": relayed}).encode() + b"\n"
        socket.send_fds(connection, [message[:1]], [1, 2])
        connection.sendall(message[1:])
        data = b""
        while not data.endswith(b"\n"):
            more = connection.recv(4096)
            if not more:
                return 255  # the controller is gone
            data += more
            if relay is not None and data == LOST:
                relay.lose()
                data = b""
    except (KeyError, OSError) as error:
        print(f"shanty: the controller cannot be reached: {error}", file=sys.stderr)
        return 255
    finally:
        connection.close()
    answer = json.loads(data)
    if "here" in answer:  # the launcher takes its own host for another one
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    if "unknown" in answer:
        return None
    return int(answer["code"])
