"""Listens for other hosts, so that networks can be tried: the verbs `net-listen`, `net-close`."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from typing import Any, BinaryIO, Dict, Optional, Sequence, Set

from shanty.runtime.rpc import probe_protocol
from shanty.runtime.rpc.probe_protocol import Ask, Say
from shanty.runtime.rpc.socket_loop import FOREVER, READ, WRITE, Sockets, Talk, receive, send

_MOST_BYTES = 1 << 20  # that a try may ask for
_MOST = 512  # connections that are served at once
_GREETING = 5.0  # seconds that a connection has to say who it is
_PAUSE = 0.05  # seconds until the next try where no more files can be opened


class _Listener:
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
        self._thread.join(probe_protocol.SLACK)

    def _serve(self) -> None:
        for end in self._ends:
            self._sockets.add(self._accept(end))
        self._sockets.add(self._until_closed())
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
            yield end, READ, FOREVER
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
        head = yield from receive(end, probe_protocol.HEAD.size, now + _GREETING)
        _nonce, wanted, size, seconds, skipped, _proof = probe_protocol.HEAD.unpack(head)
        if head in self._heard or not probe_protocol.is_proven(self._token, head):
            return
        if not (size <= _MOST_BYTES and 0 <= skipped < seconds <= probe_protocol.MOST_SECONDS):
            return
        self._heard.add(head)
        self._busy = time.monotonic()
        probe_protocol.at_once(end)
        yield from send(end, probe_protocol.answer_to(self._token, head), now + _GREETING)
        if wanted == probe_protocol.TRY:
            yield from _take_and_give(
                end, size, now + probe_protocol.MOST_SECONDS + probe_protocol.SLACK
            )
        elif wanted == probe_protocol.FLOOD:
            yield from _count(end, seconds, skipped)


_listener: Optional[_Listener] = None  # of this server


def net_listen(ask: Ask, _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """Listen at each of `addresses` for who has `token` (hexadecimal, 16 bytes).

    The system chooses the ports, or they are the first free ones of `ports`, `[first, last]`.
    Ends with `net-close`, another `net-listen`, the server, or `idle` seconds without a guest.
    Returns `{"ports": {address: port}, "errors": {address: text}}`.
    """
    global _listener
    token = probe_protocol.token_of(ask["token"])
    net_close({}, _data, _say)
    ends, ports, errors = [], {}, {}
    for address in ask["addresses"]:
        try:
            end = _listening(address, ask.get("ports"))
        except OSError as error:
            errors[address] = error.strerror or str(error)
        else:
            ends.append(end)
            ports[address] = end.getsockname()[1]
    if ends:
        _listener = _Listener(ends, token, float(ask.get("idle", 60.0)))
    return {"ports": ports, "errors": errors}


def net_close(_ask: Ask, _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """End what `net-listen` began."""
    global _listener
    if _listener is not None:
        _listener.close()
        _listener = None
    return {}


def _listening(address: str, ports: Optional[Sequence[int]]) -> socket.socket:
    end = socket.socket(probe_protocol.family(address), socket.SOCK_STREAM)
    try:
        if end.family == socket.AF_INET6:
            end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if ports:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(end, address, ports)
        end.listen(128)
        end.setblocking(False)
    except OSError:
        end.close()
        raise
    return end


def _bind(end: socket.socket, address: str, ports: Optional[Sequence[int]]) -> None:
    if not ports:
        end.bind((address, 0))
        return
    for port in range(int(ports[0]), int(ports[1]) + 1):
        try:
            end.bind((address, port))
            return
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise OSError(errno.EADDRINUSE, f"no port of {ports[0]}-{ports[1]} is free")


def _take_and_give(end: socket.socket, size: int, until: float) -> Talk:
    yield from receive(end, size, until)
    yield from send(end, b"k", until)
    yield from send(end, bytes(size), until)


def _count(end: socket.socket, seconds: float, skipped: float) -> Talk:
    """Give back single bytes, then count what comes in `seconds`, but for the first `skipped`."""
    for _ in range(probe_protocol.TRIPS):
        byte = yield from receive(end, 1, time.monotonic() + probe_protocol.SLACK)
        yield from send(end, byte, time.monotonic() + probe_protocol.SLACK)
    buffer = bytearray(probe_protocol.BLOCK)
    yield end, READ, time.monotonic() + probe_protocol.SLACK
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
    yield from send(
        end, probe_protocol.RESULT.pack(total, lasted), time.monotonic() + probe_protocol.SLACK
    )
    until = time.monotonic() + probe_protocol.SLACK
    while True:  # to close with bytes unread would take the answer away again
        yield end, READ, until
        try:
            if not end.recv_into(buffer):
                break
        except BlockingIOError:
            continue
