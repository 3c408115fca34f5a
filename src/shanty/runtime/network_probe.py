"""Tries the networks between hosts: listening, probing and flooding, over real connections.

A host that listens has a token of its own: 16 bytes, which are passed over ssh to the other hosts
and never sent over the network itself. The other end first sends what it wants, with 16 random
bytes and a proof that it knows the token. Each such head is served once, so neither a stranger nor
a recording of the head is served. The answer is a proof for just this head, so the other end knows
that this host has answered, and not a stranger behind the same address. What follows is not
protected:

    TRY     TRY_BYTES there; one byte back, then TRY_BYTES back. Small packets pass where large
            ones vanish (a black hole for the path's MTU), so both have to arrive.
    FLOOD   a few single bytes there and back, for the latency; then as much as goes through, for
            as long as was said. The receiver counts, and answers what it has counted.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import selectors
import socket
import struct
import threading
import time
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

HEAD = struct.Struct("!16scd16s")  # nonce, what is wanted, seconds, proof
PROOF = 16  # bytes of a proof
RESULT = struct.Struct("!Qd")  # bytes, seconds
TRY, FLOOD = b"t", b"f"
TRIPS = 9  # round trips for a latency
_BLOCK = 1 << 18
_MOST_SECONDS = 5.0  # that a flood may take
_SLACK = 5.0  # seconds beyond its time after which a conversation is over
CLOSED = "it closes the connection without an answer"
TRY_BYTES = 1 << 16  # of a try, each way
_MOST = 256  # connections that are served at once, each by a thread
_GREETING = 5.0  # seconds for a client to send its head
_ALL_PAIRS = 16  # hosts up to which every one tries every other one
_PAUSE = 0.05  # seconds until the next try where no more files can be opened
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: what has not been sent yet is thrown away

Say = Callable[[Mapping[str, Any]], None]


def _limit(end: socket.socket, until: float) -> None:
    """Have the next call of the socket raise `socket.timeout` at `until`; at once if it is over."""
    left = until - time.monotonic()
    if left <= 0:
        raise socket.timeout
    end.settimeout(left)


def _receive(end: socket.socket, size: int, until: float) -> bytes:
    """Exactly `size` bytes; ConnectionError where the other end closes before."""
    data = bytearray()
    while len(data) < size:
        _limit(end, until)
        piece = end.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("closed")
        data += piece
    return bytes(data)


def _send(end: socket.socket, data: bytes, until: float) -> None:
    _limit(end, until)
    end.sendall(data)


# --------------------------------------------------------------------------- the handshake


def head(token: bytes, wanted: bytes, seconds: float) -> bytes:
    """The first bytes that a client sends; no two are alike."""
    words = HEAD.pack(os.urandom(16), wanted, seconds, bytes(PROOF))[:-PROOF]
    return words + _proof(token, b"asks", words)


def answer_to(token: bytes, words: bytes) -> bytes:
    """The proof, for this head only, that a host knows the token."""
    return _proof(token, b"answers", words)


def _proof(token: bytes, side: bytes, words: bytes) -> bytes:
    return hmac.new(token, side + words, "sha256").digest()[:PROOF]


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Listener:
    """Serves clients that know the token, in threads of its own, until it is closed or idle."""

    def __init__(self, ends: Sequence[socket.socket], token: bytes, idle: float) -> None:
        self._token = token
        self._idle = idle
        self._busy = time.monotonic()
        self._ends = ends
        self._wake, self._woken = socket.socketpair()
        self._guests: Dict[socket.socket, threading.Thread] = {}
        self._heard: Dict[bytes, socket.socket] = {}  # which guest each head was served to
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and wait until its ports are free."""
        self._wake.close()
        self._thread.join(_SLACK)
        for guest, thread in list(self._guests.items()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                guest.shutdown(socket.SHUT_RDWR)
            thread.join(_SLACK)

    def _serve(self) -> None:
        ready: List[Any] = []
        with selectors.DefaultSelector() as selector:
            for end in (*self._ends, self._woken):
                selector.register(end, selectors.EVENT_READ)
            while self._woken not in ready:
                left = self._busy + self._idle - time.monotonic()
                if left <= 0:
                    break
                ready = [key.fileobj for key, _ in selector.select(left)]
                for end in self._ends:
                    if end in ready:
                        self._accept(end)
        for end in (*self._ends, self._woken):
            end.close()

    def _accept(self, end: socket.socket) -> None:
        try:
            guest, _peer = end.accept()
        except OSError as error:  # else it was gone before we came to it
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it waits on, and is still ready
                time.sleep(_PAUSE)
            return
        thread = threading.Thread(target=self._serve_one, args=(guest,), daemon=True)
        try:
            if len(self._guests) >= _MOST:
                raise RuntimeError("too many guests")
            self._guests[guest] = thread
            thread.start()
        except RuntimeError:  # or no thread can be started
            self._guests.pop(guest, None)
            guest.close()

    def _serve_one(self, guest: socket.socket) -> None:
        with guest, contextlib.suppress(OSError):
            self._answer(guest)
        del self._guests[guest]

    def _answer(self, end: socket.socket) -> None:
        now = time.monotonic()
        words = _receive(end, HEAD.size, now + _GREETING)
        _nonce, wanted, seconds, proof = HEAD.unpack(words)
        if not hmac.compare_digest(proof, _proof(self._token, b"asks", words[:-PROOF])):
            return
        if not 0 < seconds <= _MOST_SECONDS or self._heard.setdefault(words, end) is not end:
            return
        self._busy = time.monotonic()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(end, answer_to(self._token, words), now + _GREETING)
        if wanted == TRY:
            until = now + _MOST_SECONDS + _SLACK
            _receive(end, TRY_BYTES, until)
            _send(end, b"k", until)
            _send(end, bytes(TRY_BYTES), until)
        elif wanted == FLOOD:
            _count(end, seconds)


def pairs(count: int) -> List[Tuple[int, int]]:
    """Returns which host tries which, by number: all pairs up to 16 hosts, else `some_pairs`."""
    if count > _ALL_PAIRS:
        return some_pairs(count)
    return [(i, j) for i in range(count) for j in range(count) if i != j]


def some_pairs(count: int) -> List[Tuple[int, int]]:
    """Returns the pairs that collectives use: i and i + 1, i + 2, i + 4 …, in both directions."""
    steps = [1 << k for k in range((count - 1).bit_length())]
    there = {(i, (i + step) % count) for i in range(count) for step in steps}
    return sorted(there | {(j, i) for i, j in there})


class Listening(NamedTuple):
    """The outcome of `listen`: the ports by address, and why it cannot be done at others."""

    listener: Optional[Listener]
    ports: Dict[str, int]
    errors: Dict[str, str]


def listen(
    addresses: Sequence[str], token: bytes, ports: Optional[Sequence[int]], idle: float
) -> Listening:
    """Listen at each of `addresses` for clients that have `token`, until that is closed.

    The system chooses the ports, or they are the first free ones of `ports`, `[first, last]`.
    Without a guest it ends after `idle` seconds.
    """
    ends, found, errors = [], {}, {}
    for address in addresses:
        try:
            end = _listening(address, ports)
        except OSError as error:
            errors[address] = error.strerror or str(error)
        else:
            ends.append(end)
            found[address] = end.getsockname()[1]
    return Listening(Listener(ends, token, idle) if ends else None, found, errors)


def _listening(address: str, ports: Optional[Sequence[int]]) -> socket.socket:
    for port in range(int(ports[0]), int(ports[1]) + 1) if ports else (0,):
        try:
            end = socket.create_server((address, port), family=_family(address), backlog=128)
        except OSError as error:
            code = error.errno or 0
            if not ports or code not in (errno.EADDRINUSE, errno.EACCES):
                raise OSError(code, os.strerror(code)) from error
        else:
            end.setblocking(False)
            return end
    assert ports
    raise OSError(errno.EADDRINUSE, f"no port of {ports[0]}-{ports[1]} is free")


def _count(end: socket.socket, seconds: float) -> None:
    """Return single bytes, then count what comes in `seconds`, without the first fifth of them."""
    for _ in range(TRIPS):
        until = time.monotonic() + _SLACK
        _send(end, _receive(end, 1, until), until)
    _limit(end, time.monotonic() + _SLACK)
    end.recv(1, socket.MSG_PEEK)
    buffer = bytearray(_BLOCK)
    began = time.monotonic()
    until, last, total = began + seconds, began, 0
    first = 0.0  # when what is counted began
    with contextlib.suppress(socket.timeout):
        while last < until:
            _limit(end, until)
            got = end.recv_into(buffer)
            last = time.monotonic()
            if not got:
                break
            if first:
                total += got
            elif last >= began + seconds / 5:
                first = last  # this piece may have waited in the kernel: it is not counted
    # silence at the end counts too: a line that stops is not fast
    lasted = max(last, min(until, time.monotonic())) - first if first else 0.0
    until = time.monotonic() + _SLACK
    _send(end, RESULT.pack(total, lasted), until)
    _limit(end, until)
    while end.recv_into(buffer):  # to close with bytes unread would take the answer away again
        _limit(end, until)


def probe(targets: Sequence[Mapping[str, Any]], timeout: float = 2.0) -> List[Dict[str, Any]]:
    """Try `targets`, `[{"address", "port", "token", "source"}, …]`, all at once.

    `source` is the own address to come from, "" for the system's choice. `timeout` bounds the
    connection, and again the bytes, TRY_BYTES each way. Returns `[{"kind", "text", "via",
    "seconds"}, …]` in their order. `via` is the own address from which the system itself would go
    there, `seconds` what the bytes took. Kinds: "ok"; "no-answer", "refused", "unreachable":
    the connection fails; "silent": it is accepted, but not even the greeting comes; "wrong-host":
    another host answers; "large-lost", "large-lost-back": small packets pass, large ones vanish on
    the way there, or back; "error": the own host cannot even try.
    """

    def work(end: socket.socket, result: Dict[str, Any]) -> None:
        began = time.monotonic()
        until = began + timeout
        result["kind"] = "large-lost"
        _send(end, bytes(TRY_BYTES), until)
        _receive(end, 1, until)
        result["kind"] = "large-lost-back"
        _receive(end, TRY_BYTES, max(until, time.monotonic() + timeout / 2))
        result.update(kind="ok", seconds=time.monotonic() - began)

    results = _side_by_side(targets, (TRY, _MOST_SECONDS), timeout, work)
    for target, result in zip(targets, results):
        result.setdefault("seconds", 0.0)
        result["via"] = _way(target)
    return results


def flood(targets: Sequence[Mapping[str, Any]], seconds: float) -> List[Dict[str, Any]]:
    """Send to `targets` (as for `probe`) as fast as it goes, to all at the same time.

    It takes `seconds`, of which the first fifth does not count, since TCP starts slowly.
    Returns `[{"kind", "text", "rate", "latency"}, …]`: bytes/s as the receiver counted, and half
    a round trip of one byte in seconds, the median of a few, before the flood.
    """

    def work(end: socket.socket, result: Dict[str, Any]) -> None:
        until = time.monotonic() + seconds + _SLACK
        trips = []
        for _ in range(TRIPS):
            began = time.monotonic()
            _send(end, b"x", until)
            _receive(end, 1, until)
            trips.append(time.monotonic() - began)
        result.update(kind="large-lost", latency=sorted(trips)[len(trips) // 2] / 2)
        total, lasted = RESULT.unpack(_pour(end, until))
        result.update(kind="ok", rate=total / lasted if lasted > 0 else 0.0)

    results = _side_by_side(targets, (FLOOD, seconds), 2.0, work)
    return [{"rate": 0.0, "latency": 0.0, **result} for result in results]


def _pour(end: socket.socket, until: float) -> bytes:
    """Write until the receiver answers, which it does when its time is over."""
    block = memoryview(bytes(_BLOCK))
    answer = b""
    while len(answer) < RESULT.size:
        _limit(end, until)
        with contextlib.suppress(socket.timeout):
            end.settimeout(0.05)  # a full buffer must not hide the answer
            end.send(block)
        with contextlib.suppress(BlockingIOError):
            end.setblocking(False)
            piece = end.recv(RESULT.size - len(answer))
            if not piece:
                raise ConnectionResetError("closed")
            answer += piece
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    return answer


_Work = Callable[[socket.socket, Dict[str, Any]], None]
_listener: Optional[Listener] = None  # of this RPC server


def _side_by_side(
    targets: Sequence[Mapping[str, Any]], wanted: Tuple[bytes, float], timeout: float, work: _Work
) -> List[Dict[str, Any]]:
    """Do `work` with each target, all at once; a `kind` and `text` for each of how far it got."""
    results: List[Dict[str, Any]] = [{"kind": "error", "text": ""} for _ in targets]
    threads = [
        threading.Thread(target=_talk, args=(*each, wanted, timeout, work), daemon=True)
        for each in zip(targets, results)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _talk(
    target: Mapping[str, Any],
    result: Dict[str, Any],
    wanted: Tuple[bytes, float],
    timeout: float,
    work: _Work,
) -> None:
    """Connect, exchange proofs, then `work`; `result` says how far it got."""
    until = time.monotonic() + timeout
    token, address = bytes.fromhex(target["token"]), str(target["address"])
    with socket.socket(_family(address), socket.SOCK_STREAM) as end:
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.get("source"):
                end.bind((target["source"], 0))
            result["kind"] = "no-answer"
            _limit(end, until)
            end.connect((address, int(target["port"])))
            result["kind"] = "silent"
            words = head(token, *wanted)
            _send(end, words, until)
            heard = b""
            with contextlib.suppress(ConnectionError):
                late = max(until, time.monotonic() + timeout / 2)
                heard = _receive(end, PROOF, late)
            if not hmac.compare_digest(heard, answer_to(token, words)):
                result.update(kind="wrong-host", text="" if heard else CLOSED)
                return
            work(end, result)
        except socket.timeout:  # what has not arrived must not load the wire any longer
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        except OSError as error:
            result["text"] = error.strerror or str(error)
            if result["kind"] == "no-answer" and error.errno != errno.ETIMEDOUT:
                refused = error.errno == errno.ECONNREFUSED
                result["kind"] = "refused" if refused else "unreachable"


def _way(target: Mapping[str, Any]) -> str:
    """The own address from which the system reaches a target; no packet is sent for it."""
    try:
        with socket.socket(_family(target["address"]), socket.SOCK_DGRAM) as end:
            end.connect((target["address"], int(target["port"])))
            return str(end.getsockname()[0])
    except OSError:
        return ""


# ------------------------------------------------------------------------------- verbs


def net_listen(ask: Mapping[str, Any], data: BinaryIO, say: Say) -> Dict[str, Any]:
    """Listen at each of `addresses` for clients that have `token` (hexadecimal, 16 bytes).

    The system chooses the ports, or they are the first free ones of `ports`, `[first, last]`.
    Ends with `net-close`, another `net-listen`, the server, or `idle` seconds without a client.
    Returns `{"ports": {address: port}, "errors": {address: text}}`.
    """
    global _listener
    token = bytes.fromhex(ask["token"])
    net_close({}, data, say)
    idle = float(ask.get("idle", 60.0))
    _listener, ports, errors = listen(ask["addresses"], token, ask.get("ports"), idle)
    return {"ports": ports, "errors": errors}


def net_close(_ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """End what `net-listen` began."""
    global _listener
    if _listener is not None:
        _listener.close()
        _listener = None
    return {}


def net_probe(ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """Try `targets` for `timeout` seconds; returns `{"results": …}` as `probe` gives them."""
    return {"results": probe(ask["targets"], float(ask.get("timeout", 2.0)))}


def net_send(ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """Send to `targets` as fast as possible; returns `{"results": …}` as `flood` gives them."""
    return {"results": flood(ask["targets"], float(ask.get("seconds", 0.25)))}
