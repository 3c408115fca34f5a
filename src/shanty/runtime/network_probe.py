"""Tries the networks between hosts: listening, probing and flooding, over real connections.

A host that listens has a token of its own, 16 bytes that only those know who were told them over
ssh, and that never goes over the network. The other end sends first what it wants, with 16 random
bytes and a proof that it knows the token; each such head is served once, so nobody else is served,
and no recording of it. The answer is a proof for just this head, so the other end knows which host
has answered, and not a stranger behind the same address. What follows is not protected:

    TRY     SIZE bytes there; one byte back, then SIZE bytes back. Small packets pass where large
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
from functools import partial
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)  # fmt: skip

from shanty.runtime.errors import UsageError

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
HEAD = struct.Struct("!16scIdd16s")  # nonce, what is wanted, size, seconds, not counted, proof
PROOF = 16  # bytes of a proof
RESULT = struct.Struct("!Qd")  # bytes, seconds
TRY, FLOOD = b"t", b"f"
TRIPS = 9  # round trips for a latency
_BLOCK = 1 << 18
_MOST_SECONDS = 5.0  # that a flood may take
_SLACK = 5.0  # seconds beyond its time after which a conversation is over
CLOSED = "it closes the connection without a word"
TRY_BYTES = 1 << 16  # of a try, each way
_MOST_BYTES = 1 << 20  # that a try may ask for
_MOST = 512  # connections that are served at once
_GREETING = 5.0  # seconds that a connection has to say who it is
_ALL_PAIRS = 16  # hosts up to which every one tries every other one
_PAUSE = 0.05  # seconds until the next try where no more files can be opened
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: what has not been sent yet is thrown away

Wait = Tuple[socket.socket, int, float]  # a socket, READ or WRITE, and until when
Talk = Generator[Wait, None, None]


# ------------------------------------------------------------------ many sockets, one thread


class Sockets:
    """Runs conversations side by side in one thread; each is a generator.

    A conversation yields a `Wait` and goes on when the socket is ready; when its time is over,
    `socket.timeout` is raised in it. A socket is waited for by one conversation at a time. An
    OSError that a conversation lets pass ends it; it closes itself what it has opened.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._talks: Dict[Talk, Wait] = {}

    def add(self, talk: Talk) -> None:
        """Begin a conversation."""
        self._go_on(talk, lambda: next(talk))

    def run(self, *, on: Callable[[], bool] = lambda: True) -> None:
        """Go on until all conversations are over, or `on` is false after something happened."""
        while self._talks and on():
            first = min(until for _socket, _event, until in self._talks.values())
            wait = None if first == float("inf") else max(0.0, first - time.monotonic())
            for key, _events in self._selector.select(wait):
                talk: Talk = key.data
                if talk in self._talks:
                    self._go_on(talk, partial(next, talk))
            now = time.monotonic()
            late = [talk for talk, (_s, _e, until) in self._talks.items() if until <= now]
            for talk in late:
                self._go_on(talk, partial(talk.throw, socket.timeout()))

    def close(self) -> None:
        """End all conversations where they are."""
        for talk, (end, _event, _until) in list(self._talks.items()):
            self._selector.unregister(end)
            talk.close()
        self._talks.clear()
        self._selector.close()

    def _go_on(self, talk: Talk, step: Callable[[], Wait]) -> None:
        before = self._talks.pop(talk, None)
        wait = None
        with contextlib.suppress(StopIteration, OSError):
            wait = step()
        if before is not None and (wait is None or before[:2] != wait[:2]):
            self._selector.unregister(before[0])  # it may be closed by now; that does no harm
            before = None
        if wait is not None:
            if before is None:
                self._selector.register(wait[0], wait[1], talk)
            self._talks[talk] = wait


def _receive(end: socket.socket, size: int, until: float) -> Generator[Wait, None, bytes]:
    """Exactly `size` bytes; ConnectionError where the other end closes before."""
    data = bytearray()
    while len(data) < size:
        yield end, READ, until
        with contextlib.suppress(BlockingIOError):
            piece = end.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("closed")
            data += piece
    return bytes(data)


def _send(end: socket.socket, data: bytes, until: float) -> Talk:
    rest = memoryview(data)
    while rest:
        yield end, WRITE, until
        with contextlib.suppress(BlockingIOError):
            rest = rest[end.send(rest) :]


# --------------------------------------------------------------------------- the handshake


def token_of(text: str) -> bytes:
    """A token that is written in hexadecimal digits."""
    token = bytes.fromhex(text)
    if len(token) != 16:
        raise UsageError("a token has 16 bytes")
    return token


def head(token: bytes, wanted: bytes, size: int, seconds: float, skipped: float) -> bytes:
    """The first bytes that a client sends; no two are alike."""
    words = HEAD.pack(os.urandom(16), wanted, size, seconds, skipped, bytes(PROOF))[:-PROOF]
    return words + _proof(token, b"asks", words)


def answer_to(token: bytes, words: bytes) -> bytes:
    """The proof, for this head only, that a host knows the token."""
    return _proof(token, b"answers", words)


def _proof(token: bytes, side: bytes, words: bytes) -> bytes:
    return hmac.new(token, side + words, "sha256").digest()[:PROOF]


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Listener:
    """Serves who knows the token, in a thread of its own, until it is closed or idle."""

    def __init__(self, ends: Sequence[socket.socket], token: bytes, idle: float) -> None:
        self._token = token
        self._idle = idle
        self._busy = time.monotonic()
        self._ends = ends
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._sockets = Sockets()
        self._open = True
        self._guests = 0
        self._heard: Set[bytes] = set()  # heads that were served, so that none is served twice
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and wait until its ports are free."""
        self._wake.close()
        self._thread.join(_SLACK)

    def _serve(self) -> None:
        for talk in (*map(self._accept, self._ends), self._until_closed()):
            self._sockets.add(talk)
        try:
            self._sockets.run(on=lambda: self._open)
        finally:
            self._sockets.close()
            for end in (*self._ends, self._woken):
                end.close()

    def _until_closed(self) -> Talk:
        while self._open:
            try:
                yield self._woken, READ, self._busy + self._idle
                self._open = False
            except socket.timeout:
                self._open = time.monotonic() < self._busy + self._idle

    def _accept(self, end: socket.socket) -> Talk:
        while True:
            yield end, READ, float("inf")
            try:
                connection, _peer = end.accept()
            except OSError as error:  # else it was gone before we came to it
                if error.errno in (errno.EMFILE, errno.ENFILE):  # it waits on, and is still ready
                    with contextlib.suppress(socket.timeout):
                        yield end, WRITE, time.monotonic() + _PAUSE  # which it never is
                continue
            if self._guests >= _MOST:
                connection.close()
            else:
                connection.setblocking(False)
                self._sockets.add(self._serve_one(connection))

    def _serve_one(self, end: socket.socket) -> Talk:
        self._guests += 1
        try:
            with end:
                yield from self._answer(end)
        finally:
            self._guests -= 1

    def _answer(self, end: socket.socket) -> Talk:
        now = time.monotonic()
        words = yield from _receive(end, HEAD.size, now + _GREETING)
        _nonce, wanted, size, seconds, skipped, proof = HEAD.unpack(words)
        if words in self._heard or not hmac.compare_digest(
            proof, _proof(self._token, b"asks", words[:-PROOF])
        ):
            return
        if not (size <= _MOST_BYTES and 0 <= skipped < seconds <= _MOST_SECONDS):
            return
        self._heard.add(words)
        self._busy = time.monotonic()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield from _send(end, answer_to(self._token, words), now + _GREETING)
        if wanted == TRY:
            until = now + _MOST_SECONDS + _SLACK
            yield from _receive(end, size, until)
            yield from _send(end, b"k", until)
            yield from _send(end, bytes(size), until)
        elif wanted == FLOOD:
            yield from _count(end, seconds, skipped)


def pairs(count: int) -> List[Tuple[int, int]]:
    """Returns who tries whom, by number: all up to 16 hosts; of more, as `some_pairs`."""
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
    """Listen at each of `addresses` for who has `token`, until that is closed.

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


def _count(end: socket.socket, seconds: float, skipped: float) -> Talk:
    """Give back single bytes, then count what comes in `seconds`, but for the first `skipped`."""
    for _ in range(TRIPS):
        byte = yield from _receive(end, 1, time.monotonic() + _SLACK)
        yield from _send(end, byte, time.monotonic() + _SLACK)
    buffer = bytearray(_BLOCK)
    yield end, READ, time.monotonic() + _SLACK
    began = time.monotonic()
    until, last, total = began + seconds, began, 0
    first = 0.0  # when what is counted began
    while last < until:
        try:
            yield end, READ, until
            got = end.recv_into(buffer)
        except BlockingIOError:
            continue
        except socket.timeout:
            break
        last = time.monotonic()
        if not got:
            break
        if first:
            total += got
        elif last >= began + skipped:
            first = last  # this piece may have waited in the kernel: it is not counted
    # silence at the end counts too: a line that stops is no fast line
    lasted = max(last, min(until, time.monotonic())) - first if first else 0.0
    until = time.monotonic() + _SLACK
    yield from _send(end, RESULT.pack(total, lasted), until)
    got = 1
    while got:  # to close with bytes unread would take the answer away again
        yield end, READ, until
        with contextlib.suppress(BlockingIOError):
            got = end.recv_into(buffer)


def probe(
    targets: Sequence[Mapping[str, Any]], timeout: float = 2.0, size: int = TRY_BYTES
) -> List[Dict[str, Any]]:
    """Try `targets`, `[{"address", "port", "token", "source"}, …]`, all at once.

    `source` is the own address to come from, "" for the system's choice. `timeout` bounds the
    connection, and again the bytes, `size` each way. Returns `[{"kind", "text", "via",
    "seconds"}, …]` in their order. `via` is the own address from which the system itself would go
    there, `seconds` what the bytes took. Kinds: "ok"; "no-answer", "refused", "unreachable":
    there is no connection; "silent": there is one, but not even the greeting comes; "wrong-host":
    another one answers; "large-lost", "large-lost-back": small packets pass, large ones vanish on
    the way there, or back; "error": the own host cannot even try.
    """

    def work(end: socket.socket, result: Dict[str, Any]) -> Talk:
        began = time.monotonic()
        until = began + timeout
        result["kind"] = "large-lost"
        yield from _send(end, bytes(size), until)
        yield from _receive(end, 1, until)
        result["kind"] = "large-lost-back"
        yield from _receive(end, size, max(until, time.monotonic() + timeout / 2))
        result.update(kind="ok", seconds=time.monotonic() - began)

    results = _side_by_side(targets, (TRY, size, _MOST_SECONDS, 0.0), timeout, work)
    for target, result in zip(targets, results):
        result.setdefault("seconds", 0.0)
        result["via"] = _way(target)
    return results


def flood(
    targets: Sequence[Mapping[str, Any]], seconds: float, skipped: float
) -> List[Dict[str, Any]]:
    """Send to `targets` (as for `probe`) as fast as it goes, to all at the same time.

    It takes `seconds` of which the first `skipped` do not count, since TCP starts slowly.
    Returns `[{"kind", "text", "rate", "latency"}, …]`: bytes/s as the receiver counted, and half
    a round trip of one byte in seconds, the median of a few, before the flood.
    """

    def work(end: socket.socket, result: Dict[str, Any]) -> Talk:
        until = time.monotonic() + seconds + _SLACK
        trips = []
        for _ in range(TRIPS):
            began = time.monotonic()
            yield from _send(end, b"x", until)
            yield from _receive(end, 1, until)
            trips.append(time.monotonic() - began)
        result.update(kind="large-lost", latency=sorted(trips)[len(trips) // 2] / 2)
        total, lasted = RESULT.unpack((yield from _pour(end, until)))
        result.update(kind="ok", rate=total / lasted if lasted > 0 else 0.0)

    results = _side_by_side(targets, (FLOOD, 0, seconds, skipped), 2.0, work)
    return [{"rate": 0.0, "latency": 0.0, **result} for result in results]


def _pour(end: socket.socket, until: float) -> Generator[Wait, None, bytes]:
    """Write until the receiver answers, which it does when its time is over."""
    block = memoryview(bytes(_BLOCK))
    answer = b""
    while len(answer) < RESULT.size and time.monotonic() < until:
        with contextlib.suppress(BlockingIOError, socket.timeout):
            yield end, WRITE, time.monotonic() + 0.05  # a full buffer must not hide the answer
            end.send(block)
        with contextlib.suppress(BlockingIOError):
            piece = end.recv(RESULT.size - len(answer))
            if not piece:
                raise ConnectionResetError("closed")
            answer += piece
    if len(answer) < RESULT.size:
        raise socket.timeout
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    return answer


_Work = Callable[[socket.socket, Dict[str, Any]], Talk]


def _side_by_side(
    targets: Sequence[Mapping[str, Any]], wanted: Tuple[Any, ...], timeout: float, work: _Work
) -> List[Dict[str, Any]]:
    """Do `work` with each target, all at once; a `kind` and `text` for each of how far it got."""
    results: List[Dict[str, Any]] = [{"kind": "error", "text": ""} for _ in targets]
    sockets = Sockets()
    for target, result in zip(targets, results):
        sockets.add(_talk(target, result, wanted, timeout, work))
    sockets.run()
    sockets.close()
    return results


def _talk(
    target: Mapping[str, Any],
    result: Dict[str, Any],
    wanted: Tuple[Any, ...],
    timeout: float,
    work: _Work,
) -> Talk:
    """Connect, prove who we are and hear who answers, then `work`; `result` says how far it got."""
    until = time.monotonic() + timeout
    token, address = token_of(target["token"]), str(target["address"])
    with socket.socket(_family(address), socket.SOCK_STREAM) as end:
        end.setblocking(False)
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.get("source"):
                end.bind((target["source"], 0))
            result["kind"] = "no-answer"
            yield from _connected(end, (address, int(target["port"])), until)
            result["kind"] = "silent"
            words = head(token, *wanted)
            yield from _send(end, words, until)
            heard = b""
            with contextlib.suppress(ConnectionError):
                late = max(until, time.monotonic() + timeout / 2)
                heard = yield from _receive(end, PROOF, late)
            if not hmac.compare_digest(heard, answer_to(token, words)):
                result.update(kind="wrong-host", text="" if heard else CLOSED)
                return
            yield from work(end, result)
        except socket.timeout:  # what has not arrived must not load the wire any longer
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        except OSError as error:
            result["text"] = error.strerror or str(error)
            if result["kind"] == "no-answer" and error.errno != errno.ETIMEDOUT:
                refused = error.errno == errno.ECONNREFUSED
                result["kind"] = "refused" if refused else "unreachable"


def _connected(end: socket.socket, place: Tuple[str, int], until: float) -> Talk:
    try:
        end.connect(place)
    except BlockingIOError:
        yield end, WRITE, until
        code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code)) from None


def _way(target: Mapping[str, Any]) -> str:
    """The own address from which the system goes to a target; no packet is sent for it."""
    try:
        with socket.socket(_family(target["address"]), socket.SOCK_DGRAM) as end:
            end.connect((target["address"], int(target["port"])))
            return str(end.getsockname()[0])
    except OSError:
        return ""
