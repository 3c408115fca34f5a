"""Asks the fork server (`rank/fork_server.py`) for a rank, in place of a new process."""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from shanty.runtime import platform
from shanty.runtime.rank.fork_server import RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

_TICK_MS = 100


class NotForkedError(Exception):
    """The rank has to start as any other; its text says why."""


class Forked:
    """A rank that the server has forked; `fd` can be read once it has ended."""

    def __init__(self, link: socket.socket, pid: int) -> None:
        self.pid = pid
        self._link = link
        self.fd = link.fileno()

    def status(self) -> int | None:
        """Return how it ended, as wait(2) has it; None while it lives."""
        if not select.select([self.fd], [], [], 0)[0]:
            return None
        words = self._link.recv(100).split()
        self._link.close()
        # Without its watcher, the kernel has ended it.
        return int(words[1]) if words[:1] == [b"ended"] else int(signal.SIGKILL)


def start(
    path: str,
    argv: list[str],
    runner: str,
    streams: Mapping[int, int],
    patience: float,
    stopped: Callable[[], bool],
) -> Forked:
    """Have the server at `path` fork a rank that does what `argv` would do, and return it.

    `runner` is the path of `run.py`. `streams` are our descriptors for the rank's standard streams;
    it has all others that it would inherit. The server may take `patience` seconds to import its
    modules. NotForkedError where the rank has to start otherwise, or is not wanted any more
    (`stopped`).
    """
    if argv[1:2] != [runner]:
        raise NotForkedError("its line has options for Python")
    fds, numbers = [*streams.values()], [*streams]
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number not in streams and number not in fds and os.get_inheritable(number):
                fds.append(number)
                numbers.append(number)
        except OSError:  # that of the folder
            pass
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with platform.socket_path(path) as short:
            link.connect(short)
        with open(os.memfd_create("request"), "w+b") as file:
            file.write(repr(_request(argv, numbers)).encode())
            file.seek(0)
            socket.send_fds(link, [RANK], [file.fileno(), *fds])
        kind, _, rest = _answer(link, patience, stopped).partition(" ")
    except OSError as error:
        raise NotForkedError(f"the server has ended ({error.strerror or error})") from error
    if kind != "started":
        raise NotForkedError(rest or "the server has ended")
    return Forked(link, int(rest))


def _request(argv: list[str], numbers: list[int]) -> dict[str, object]:
    first = argv[2]
    folder = "." if first.startswith("-") else os.path.dirname(os.path.realpath(first))
    return {
        "python": argv[0],
        "words": argv[1:],
        "here": os.getcwd(),
        "folder": os.path.abspath(folder),
        "environ": dict(os.environb),
        "cores": sorted(os.sched_getaffinity(0)),
        "numbers": numbers,
    }


def _answer(link: socket.socket, patience: float, stopped: Callable[[], bool]) -> str:
    """Return the server's line; "" where it has ended."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    deadline = time.monotonic() + patience
    while not poll.poll(_TICK_MS):
        if stopped():
            raise NotForkedError("it is ended")
        if time.monotonic() > deadline:
            raise NotForkedError(f"the server has not answered for {patience:g} s")
    return link.recv(4096).decode(errors="replace").strip()
