"""Whether a machine is there at all, seen from a neighbour of it: the verb `knock`.

A port that does not answer may belong to a machine that is off, or to one whose firewall drops
what comes. A machine that refuses another port, or answers a ping, is up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Mapping, Optional, Tuple

_CLOSED_PORTS = (1, 9, 61013)  # hardly anything listens there; what is up says so
_ECHO, _ECHO_REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}


def knock(
    ask: Mapping[str, Any], _data: BinaryIO, _say: Callable[[Mapping[str, Any]], None]
) -> Dict[str, Any]:
    """Look at `host` (a name or an address) and `port` there, for `timeout` seconds.

    `port` of the answer is "ssh" (an ssh server says its banner), "other" (something else speaks),
    "mute" (takes the connection, then silence), "closes" (takes it and ends it), "refused",
    "unreachable" (no way there, or nobody has the address), "silent" (no answer), or "unresolved".
    `alive` is true when anything at all of the machine answered.
    """
    return look(str(ask["host"]), int(ask["port"]), float(ask.get("timeout", 2.5)))


def look(host: str, port: int, timeout: float) -> Dict[str, Any]:
    """What `knock` returns."""
    until = time.monotonic() + timeout
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {"port": "unresolved", "alive": False, "address": ""}
    family, _, _, _, address = found[0]
    state = {"port": "silent"}
    answered = threading.Event()

    def at_the_port() -> None:
        state["port"] = _heard(family, address, until)
        if state["port"] not in ("silent", "unreachable"):
            answered.set()

    def elsewhere(other: int) -> None:
        place = (address[0], other, *address[2:])
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as connection:
            if _connected(connection, place, until) in ("refused", "open"):
                answered.set()

    def ping() -> None:
        if _pinged(family, address, until):
            answered.set()

    main = threading.Thread(target=at_the_port, daemon=True)
    others = [threading.Thread(target=elsewhere, args=(p,), daemon=True) for p in _CLOSED_PORTS]
    others.append(threading.Thread(target=ping, daemon=True))
    for thread in (main, *others):
        thread.start()
    main.join(max(0.0, until - time.monotonic()) + 0.2)
    if not answered.is_set():
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()) + 0.2)
            if answered.is_set():
                break
    return {"port": state["port"], "alive": answered.is_set(), "address": str(address[0])}


def _connected(connection: socket.socket, place: Tuple[Any, ...], until: float) -> str:
    """What becomes of a connection: "open", "refused", "unreachable" or "silent"."""
    connection.settimeout(max(0.05, until - time.monotonic()))
    try:
        connection.connect(place)
    except socket.timeout:
        return "silent"
    except OSError as error:
        return "refused" if error.errno == errno.ECONNREFUSED else "unreachable"
    return "open"


def _heard(family: int, place: Tuple[Any, ...], until: float) -> str:
    """What a server says when it is spoken to as ssh does; the `port` of `knock`."""
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as connection:
        state = _connected(connection, place, until)
        if state != "open":
            return state
        connection.settimeout(max(0.05, until - time.monotonic()))
        try:
            connection.sendall(b"SSH-2.0-shanty\r\n")  # some servers say nothing before we do
            heard = connection.recv(256)
        except socket.timeout:
            return "mute"
        except OSError:
            return "closes"
    if not heard or b"Exceeded MaxStartups" in heard or b"Not allowed at this time" in heard:
        return "closes"
    return "ssh" if heard.startswith(b"SSH-") or b"\nSSH-" in heard else "other"


def _pinged(family: int, place: Tuple[Any, ...], until: float) -> bool:
    """Whether the machine answers an ICMP echo; by ping(8) where we may send none ourselves."""
    version = 6 if family == socket.AF_INET6 else 4
    protocol = socket.IPPROTO_ICMPV6 if version == 6 else socket.IPPROTO_ICMP
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            with contextlib.closing(socket.socket(family, kind, protocol)) as sock:
                return _echoed(sock, version, place, until)
        except PermissionError:
            continue
        except OSError:
            return False
    return _by_ping(version, str(place[0]), until)


def _echoed(sock: socket.socket, version: int, place: Tuple[Any, ...], until: float) -> bool:
    packet = struct.pack("!BBHHH", _ECHO[version], 0, 0, os.getpid() & 0xFFFF, 1) + b"shanty!!"
    if version == 4:
        packet = packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]
    sock.sendto(packet, (place[0], 0, *place[2:]))
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([sock], [], [], left)[0]:
            return False
        data, sender = sock.recvfrom(2048)
        # a raw socket hears what is meant for others too, and puts the IPv4 header before it
        body = data[20:] if version == 4 and sock.type == socket.SOCK_RAW else data
        if sender[0] == place[0] and body[:1] == bytes((_ECHO_REPLY[version],)):
            return True


def _checksum(packet: bytes) -> int:
    total = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    total = (total >> 16) + (total & 0xFFFF)
    return int(~(total + (total >> 16)) & 0xFFFF)


def _by_ping(version: int, address: str, until: float) -> bool:
    left = max(1, int(until - time.monotonic()))
    done: Optional[int] = None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["ping", f"-{version}", "-n", "-c", "1", "-W", str(left), address],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=left + 0.5, check=False,
        ).returncode  # fmt: skip
    return done == 0
