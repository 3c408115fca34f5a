"""Tries other hosts from this one: the verbs `find-ssh`, `check-alive`, `try-key` and
`pods-reach`.

A port that does not answer may belong to a machine that is off, or to one whose firewall drops
what comes. A machine that refuses another port, or answers a ping, is up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.connections import run_each, ssh_command
from shanty.runtime.programs import output_of
from shanty.runtime.rpc import Ask, Data, Say

_EARLIER = 1.0  # seconds
_AT_ONCE = 32  # hosts that are tried at the same time
_PREAMBLE = 50  # lines that a server may send before its banner (RFC 4253, 4.2)
_CLOSED_PORTS = (1, 9, 61013)  # hardly anything listens there; what is up says so
_ECHO, _ECHO_REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
_KEPT = 2000  # characters of what ssh says
_PODS = 15.0  # seconds for all pods


def find_ssh(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Try each of `groups` of candidates, `[[address, port], …]`, for `timeout` seconds.

    `answers` has for each group `found`, the first of its candidates, in their order, that answers
    as an ssh server: `{"address", "port", "peer", "source", "banner"}`, where `peer` and `source`
    are the two ends in numbers; None where none does. Once a candidate has answered, those before
    it have another second. `errors` has the reason for each candidate that did not answer, and ""
    for the others.
    """
    groups, timeout = ask["groups"], float(ask["timeout"])
    with ThreadPoolExecutor(min(_AT_ONCE, len(groups)) or 1) as pool:
        return {"answers": list(pool.map(lambda group: _first_of(group, timeout), groups))}


def _first_of(places: Sequence[Sequence[Any]], timeout: float) -> Dict[str, Any]:
    results: List[Optional[Dict[str, Any]]] = [None] * len(places)
    errors: List[Optional[str]] = [None] * len(places)

    def attempt(index: int, place: Tuple[str, int]) -> None:
        try:
            results[index] = _ssh_at(place, timeout)
            errors[index] = ""
        except socket.timeout:
            errors[index] = f"no answer within {timeout:g} s"
        except (OSError, ValueError) as error:
            errors[index] = str(getattr(error, "strerror", None) or error)

    threads = [
        threading.Thread(target=attempt, args=(index, (str(name), int(port))), daemon=True)
        for index, (name, port) in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + timeout + 0.5  # a name server may be slower than that
    answered = False
    while time.monotonic() < until and any(thread.is_alive() for thread in threads):
        first = next((i for i, thread in enumerate(threads) if thread.is_alive()), 0)
        if any(results[:first]):
            break
        if not answered and any(results):
            answered = True
            until = min(until, time.monotonic() + _EARLIER)
        threads[first].join(0.02)
    found = next((result for result in results if result is not None), None)
    late = "not waited for" if found is not None else f"no answer within {timeout:g} s"
    return {"found": found, "errors": [late if error is None else error for error in errors]}


def _ssh_at(place: Tuple[str, int], timeout: float) -> Dict[str, Any]:
    until = time.monotonic() + timeout
    with contextlib.closing(socket.create_connection(place, timeout)) as connection:
        heard = b""
        lines = 0
        while lines < _PREAMBLE:
            connection.settimeout(max(0.001, until - time.monotonic()))
            data = connection.recv(256)
            if not data:
                break
            *ended, heard = (heard + data).split(b"\n")
            lines += len(ended)
            banner = next((line for line in ended if line.startswith(b"SSH-")), None)
            if banner is not None:
                return {
                    "address": place[0],
                    "port": place[1],
                    "peer": connection.getpeername()[0],
                    "source": connection.getsockname()[0],
                    "banner": banner.decode(errors="replace").strip(),
                }
    raise ValueError("what listens there is not an ssh server")


def check_alive(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Look at `host` (a name or an address) and `port` there, for `timeout` seconds.

    `port` of the answer is "ssh" (an ssh server sends its banner), "other" (another server
    answers), "mute" (takes the connection, then silence), "closes" (takes it and ends it),
    "refused", "unreachable" (no route, or no host has the address), "silent" (no answer), or
    "unresolved". `alive` is true if the machine answered anything at all.
    """
    return look(str(ask["host"]), int(ask["port"]), float(ask.get("timeout", 2.5)))


def look(host: str, port: int, timeout: float) -> Dict[str, Any]:
    """The answer of `check-alive`."""
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
    for thread in (main, *others):
        if thread is main or not answered.is_set():
            thread.join(max(0.0, until - time.monotonic()) + 0.2)
    return {"port": state["port"], "alive": answered.is_set(), "address": str(address[0])}


def _connected(connection: socket.socket, place: Tuple[Any, ...], until: float) -> str:
    """The fate of a connection: "open", "refused", "unreachable" or "silent"."""
    connection.settimeout(max(0.05, until - time.monotonic()))
    try:
        connection.connect(place)
    except socket.timeout:
        return "silent"
    except OSError as error:
        return "refused" if error.errno == errno.ECONNREFUSED else "unreachable"
    return "open"


def _heard(family: int, place: Tuple[Any, ...], until: float) -> str:
    """Speaks to a server as ssh does; the `port` of `check-alive`."""
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
    """True when the machine answers an ICMP echo; by ping(8) where we may send none ourselves."""
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
    left = max(1, int(until - time.monotonic()))
    argv = ["ping", f"-{version}", "-n", "-c", "1", "-W", str(left), str(place[0])]
    return output_of(argv, left + 0.5) is not None


def _echoed(sock: socket.socket, version: int, place: Tuple[Any, ...], until: float) -> bool:
    packet = struct.pack("!BBHHH", _ECHO[version], 0, 0, os.getpid() & 0xFFFF, 1) + b"shanty!!"
    if version == 4:
        total = sum(struct.unpack("!8H", packet))  # its checksum is that of RFC 1071
        total = (total >> 16) + (total & 0xFFFF)
        checksum = ~(total + (total >> 16)) & 0xFFFF
        packet = packet[:2] + struct.pack("!H", checksum) + packet[4:]
    sock.sendto(packet, (place[0], 0, *place[2:]))
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([sock], [], [], left)[0]:
            return False
        data, sender = sock.recvfrom(2048)
        # a raw socket receives what is meant for others too, and puts the IPv4 header before it
        body = data[20:] if version == 4 and sock.type == socket.SOCK_RAW else data
        if sender[0] == place[0] and body[:1] == bytes((_ECHO_REPLY[version],)):
            return True


def try_key(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`key known_hosts hosts timeout`: try an ssh to each of `hosts`, all at once.

    `key` is a private key ("" for those of this login) and `known_hosts` the text of such a file;
    both are gone from here at the end. `hosts` are as in `ssh_command`. `tries` has
    `{"code", "text"}` for each, in their order: ssh's exit code, None where it had none after
    `timeout` seconds, and what it said.
    """
    timeout, hosts = float(ask["timeout"]), ask["hosts"]
    folder = tempfile.mkdtemp(prefix="shanty-try-")  # for this user alone
    files = {name: os.path.join(folder, name) for name in ("key", "known_hosts")}

    def attempt(host: Mapping[str, Any]) -> Dict[str, Any]:
        key = files["key"] if ask["key"] else ""
        return _try_ssh(host, key, files["known_hosts"], timeout)

    try:
        for name, path in files.items():
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(ask[name])
        with ThreadPoolExecutor(len(hosts) or 1) as pool:
            return {"tries": list(pool.map(attempt, hosts))}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try_ssh(host: Mapping[str, Any], key: str, known_hosts: str, timeout: float) -> Dict[str, Any]:
    code = None
    with tempfile.TemporaryFile() as said:  # no pipe: a program of ssh's may keep that open
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                ssh_command(host, key, known_hosts, max(1, int(timeout))),
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout, check=False,
            ).returncode  # fmt: skip
        text = os.pread(said.fileno(), _KEPT, 0).decode(errors="replace").strip()
    return {"code": code, "text": text}


def pods_reach(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`pods`, each as [name, address, port]: `failed`, what keeps us from which of them."""
    boot = [sys.executable, "-I", "-S", str(Path(__file__).parent.parent / "boot.py")]
    pods = ask["pods"]
    calls = [[*boot, "kubernetes.dial", address, str(port), "true"] for _, address, port in pods]
    answers = run_each(calls, _PODS)
    failed = {
        name: "no answer" if answer.code is None else answer.err.strip()
        for (name, _, _), answer in zip(pods, answers)
        if answer.code != 0
    }
    return {"failed": failed}
