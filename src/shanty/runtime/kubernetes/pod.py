"""The first process of a run's pod: starts what the lead pod asks for, and ends when it is idle.

`python pod.py serve` comes into the pod by a ConfigMap and is run by the image's own Python, before
any other code of shanty's is there: so it imports nothing of it.

The lead pod's calls come by TCP. Both ends prove that they have the run's key, which is in a
Secret, by the HMACs of two random numbers; each frame has a HMAC of its own under a key made of
those (HMAC: RFC 2104). Nothing is encrypted, as the ranks' own messages are not either.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

PORT = 24180
KEY = "/etc/shanty/key"  # where the Secret is mounted
PORT_VARIABLE, IDLE_VARIABLE, KEEP_VARIABLE = (
    "SHANTY_POD_PORT",
    "SHANTY_POD_IDLE",
    "SHANTY_POD_KEEP",
)
OPEN, DATA, OUT, ERR, END = range(5)  # kinds of frames: start, stdin, stdout, stderr, exit code
IDLE = 180.0  # seconds without any other process after which a pod that had one has no use
KEEP = 3600.0  # seconds that a run which has ended waits for its files to be fetched
_GREETING = 10.0  # seconds for a caller to prove that it has the key
_LEAVING = 8.0  # seconds that the run has to end in, when the pod is being deleted
_LOOK = 0.5  # seconds between two looks at what runs in the pod
_CHUNK = 1 << 16
_LARGEST = 1 << 20  # bytes of one frame
_HEAD = struct.Struct("!BI")
_MAC = 16  # bytes of a frame's HMAC
_MAGIC = b"shanty-pod 1\n"
_NONCE = 32


class WrongKeyError(Exception):
    """The other end does not have the run's key, or a frame is not its own."""


class Line:
    """One end of a call, after the handshake; frames are in order, and each is proven."""

    def __init__(self, link: socket.socket, key: bytes, own: bytes, other: bytes) -> None:
        self._link = link
        self._keys = (_mac(key, own), _mac(key, other))
        self._sent = self._heard = 0
        self._sending = threading.Lock()

    def send(self, kind: int, data: bytes = b"") -> None:
        """Send a frame; OSError where the other end is gone."""
        head = _HEAD.pack(kind, len(data))
        with self._sending:
            proof = _mac(self._keys[0], struct.pack("!Q", self._sent) + head + data)[:_MAC]
            self._sent += 1
            self._link.sendall(head + data + proof)

    def receive(self) -> Optional[Tuple[int, bytes]]:
        """The next frame; None at the end."""
        head = _exactly(self._link, _HEAD.size)
        if head is None:
            return None
        kind, size = _HEAD.unpack(head)
        if size > _LARGEST:
            raise WrongKeyError("a frame is too large")
        rest = _exactly(self._link, size + _MAC)
        if rest is None:
            return None
        data, proof = rest[:size], rest[size:]
        own = _mac(self._keys[1], struct.pack("!Q", self._heard) + head + data)[:_MAC]
        self._heard += 1
        if not hmac.compare_digest(own, proof):
            raise WrongKeyError("a frame does not come from the other end")
        return kind, data


def answer_call(link: socket.socket, key: bytes) -> Line:
    """The handshake of the pod that is called; WrongKeyError where the caller lacks the key."""
    own = os.urandom(_NONCE)
    link.sendall(_MAGIC + own)
    words = _exactly(link, _NONCE + 32)
    if words is None:
        raise WrongKeyError("the caller has gone")
    session = _mac(key, own + words[:_NONCE])
    if not hmac.compare_digest(_mac(session, b"caller"), words[_NONCE:]):
        raise WrongKeyError("the caller does not have the run's key")
    link.sendall(_mac(session, b"called"))
    return Line(link, session, b"out", b"in")


def call(link: socket.socket, key: bytes) -> Line:
    """The handshake of the caller; WrongKeyError where the other end lacks the key."""
    words = _exactly(link, len(_MAGIC) + _NONCE)
    if words is None or not words.startswith(_MAGIC):
        raise WrongKeyError("a program that is not a pod of the run listens there")
    own = os.urandom(_NONCE)
    session = _mac(key, words[len(_MAGIC) :] + own)
    link.sendall(own + _mac(session, b"caller"))
    proof = _exactly(link, 32)
    if proof is None or not hmac.compare_digest(_mac(session, b"called"), proof):
        raise WrongKeyError("the pod there does not have the run's key")
    return Line(link, session, b"in", b"out")


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _exactly(link: socket.socket, size: int) -> Optional[bytes]:
    parts: List[bytes] = []
    while size:
        try:
            part = link.recv(min(size, _CHUNK))
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ---------------------------------------------------------------------------- the server


class Server:
    """Starts commands for callers, one thread a call."""

    def __init__(self, key: bytes, port: int) -> None:
        self._key = key
        self._children: Set[int] = set()
        self._lock = threading.Lock()
        self._listener = _listener(port)

    def start(self) -> None:
        """Begin to take calls."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    return  # it was closed
                time.sleep(_LOOK)
                continue
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError, ValueError, KeyError, WrongKeyError):
            link.settimeout(_GREETING)
            line = answer_call(link, self._key)
            first = line.receive()
            if first is None or first[0] != OPEN:
                return
            link.settimeout(None)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._run(line, json.loads(first[1])["argv"])

    def _run(self, line: Line, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        try:
            with self._lock:  # or the reaper might take it for an orphan
                process = subprocess.Popen(
                    argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
                )
                self._children.add(process.pid)
        except OSError as error:
            line.send(ERR, f"{argv[0]}: {error.strerror}\n".encode())
            line.send(END, b"127")
            return
        assert process.stdout and process.stderr
        streams = [(process.stdout, OUT), (process.stderr, ERR)]
        threads = [
            threading.Thread(target=_pass_on, args=(stream, line, kind), daemon=True)
            for stream, kind in streams
        ]
        threads.append(threading.Thread(target=_feed, args=(line, process.stdin), daemon=True))
        for thread in threads:
            thread.start()
        code = process.wait()
        with self._lock:
            self._children.discard(process.pid)
        for thread in threads[:2]:
            thread.join(_LOOK)  # a child of it may hold the pipe open
        line.send(END, str(code if code >= 0 else 128 - code).encode())

    def reap(self) -> None:
        """Reap the orphans that have come to the pod's first process."""
        with self._lock, contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in self._children:
                    return
                os.waitpid(found.si_pid, 0)


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel without IPv6
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
    return socket.create_server(("", port), backlog=128)


def _pass_on(stream: Any, line: Line, kind: int) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        while data := os.read(stream.fileno(), _CHUNK):
            line.send(kind, data)


def _feed(line: Line, stdin: Any) -> None:
    """Give the process what comes; the end of the call is the end of its input."""
    with contextlib.suppress(OSError, ValueError, WrongKeyError), stdin:
        while True:
            frame = line.receive()
            if frame is None or (frame[0] == DATA and not frame[1]):
                return
            rest = memoryview(frame[1])
            while rest:
                rest = rest[os.write(stdin.fileno(), rest) :]


# ------------------------------------------------------------------- how long a pod stays


def others() -> Dict[int, str]:
    """The processes of this pod but ourselves, dead ones left out: pid → command line."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    continue
            with open(f"/proc/{name}/cmdline") as file:
                found[int(name)] = file.read().replace("\0", " ").strip()
    return found


def unfetched(home: str) -> bool:
    """True where a run has been led from here, and its files were not fetched yet."""
    with contextlib.suppress(OSError):
        return any(
            name.endswith(".0") and os.path.exists(os.path.join(home, "work", name, "status.json"))
            for name in os.listdir(os.path.join(home, "work"))
        )
    return False


def serve() -> int:
    """Serve until nothing of the run is here any more; the exit code of the pod."""
    environ = os.environ
    idle = float(environ.get(IDLE_VARIABLE, IDLE))
    keep = float(environ.get(KEEP_VARIABLE, KEEP))
    told: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: told.append(number))
    with open(KEY, "rb") as file:
        server = Server(file.read().strip(), int(environ.get(PORT_VARIABLE, PORT)))
    server.start()
    print("shanty: this pod waits for its run", flush=True)
    busy = time.monotonic()
    while not told:
        server.reap()
        now = time.monotonic()
        if others():
            busy, idle = now, min(idle, IDLE)
        elif now > busy + (keep if unfetched(environ.get("SHANTY_HOME", "")) else idle):
            print(f"shanty: nothing of the run has been here for {now - busy:.0f} s", flush=True)
            return 0
        time.sleep(_LOOK)
    _leave()
    return 128 + told[0]


def _leave() -> None:
    """The pod is being deleted: let a run that is led from here end in order."""
    until = time.monotonic() + _LEAVING
    leading = {pid for pid, words in others().items() if " agent.start " in f"{words} "}
    for pid in leading:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while leading & set(others()) and time.monotonic() < until:
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(serve())
