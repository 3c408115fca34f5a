"""Many sockets in one thread: each conversation is a generator that says what it waits for."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from functools import partial
from typing import Callable, Dict, Generator, Tuple

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
FOREVER = float("inf")

Wait = Tuple[socket.socket, int, float]  # a socket, READ or WRITE, and until when
Talk = Generator[Wait, None, None]


class Sockets:
    """Runs conversations side by side.

    A conversation yields a `Wait` and goes on when the socket is ready; when its time is over,
    `socket.timeout` is raised in it. A socket is waited for by one conversation at a time. An
    OSError that a conversation lets pass ends it; what it has open it closes itself.
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
            wait = None if first == FOREVER else max(0.0, first - time.monotonic())
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


def receive(end: socket.socket, size: int, until: float) -> Generator[Wait, None, bytes]:
    """Exactly `size` bytes; ConnectionError where the other end closes before."""
    data = bytearray()
    while len(data) < size:
        yield end, READ, until
        try:
            piece = end.recv(size - len(data))
        except BlockingIOError:
            continue
        if not piece:
            raise ConnectionResetError("closed")
        data += piece
    return bytes(data)


def send(end: socket.socket, data: bytes, until: float) -> Generator[Wait, None, None]:
    """All of `data`."""
    rest = memoryview(data)
    while rest:
        yield end, WRITE, until
        try:
            rest = rest[end.send(rest) :]
        except BlockingIOError:
            continue
