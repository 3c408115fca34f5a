"""A connection to a pod of a run: `exec` of Kubernetes' API, over a WebSocket.

Protocol v4.channel.k8s.io: each message's first byte is its stream (0 to 2, and 3 for how the
command ended). https://kubernetes.io/docs/reference/using-api/ has no page for it; it is that of
k8s.io/apimachinery/pkg/util/remotecommand.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Sequence
from functools import cache
from typing import IO, Any

from shanty.launch.kubernetes.cluster import Cluster
from shanty.runtime.site import Host

CONTAINER = "run"  # the container of a run's pod
_STDIN, _STDERR, _END = 0, 2, 3
_PIECE = 64 << 10  # bytes of one message
_ROOM = 200  # milliseconds until it is seen whether there is room, or nobody reads any more
_FAILED = 255  # as ssh's, where the connection broke


@cache
def cluster(place: str) -> Cluster:
    """The cluster of a place, the same for all who ask."""
    return Cluster(place, os.environ)


class PodExec:
    """Starts processes in a pod."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def start(self, argv: Sequence[str]) -> ExecProcess:
        """Start `argv` there; ShantyError where the cluster refuses it."""
        its = cluster(self.host.pod)
        query = [("command", word) for word in argv]
        query += [(name, "true") for name in ("stdin", "stdout", "stderr")]
        query += [("container", CONTAINER), ("tty", "false")]
        return ExecProcess(its.websocket(its.path("pods", f"{self.host.name}/exec"), query))

    def close(self) -> None:
        """Do nothing: no connection is kept."""


class ExecProcess:
    """A command in a pod, as `subprocess.Popen` shows one: three pipes, and how it ended."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def __init__(self, link: Any) -> None:
        self._link = link
        self._let_go = False
        self.returncode: int | None = None
        self._ended = threading.Event()
        (ours, self.stdin), (self.stdout, out), (self.stderr, err) = _pipe(), _pipe(), _pipe()
        self._sinks = {1: out, _STDERR: err}
        for sink in self._sinks.values():
            os.set_blocking(sink.fileno(), False)
        threading.Thread(target=self._send, args=(ours,), daemon=True).start()
        threading.Thread(target=self._receive, daemon=True).start()

    def _send(self, source: IO[bytes]) -> None:
        """Pass on what is written to it, then end the connection: v4 has no end of input."""
        with contextlib.suppress(*_broken()), source:
            while data := os.read(source.fileno(), _PIECE):
                self._link.send_binary(bytes([_STDIN]) + data)
        self._hang_up()

    def _receive(self) -> None:
        code = _FAILED
        try:
            while True:
                kind, data = self._link.recv_data()
                if kind not in (1, 2):  # of WebSocket: text, binary
                    break
                if data[0] == _END:
                    code = _code_of(data[1:])
                    break
                sink = self._sinks.get(data[0])
                if sink is not None:
                    self._pass_on(sink.fileno(), memoryview(data)[1:])
        except _broken():
            pass
        self._hang_up()
        self._link.shutdown()  # which closes the socket
        self.returncode = code
        for sink in self._sinks.values():
            with contextlib.suppress(OSError):
                sink.close()
        self._ended.set()

    def _pass_on(self, sink: int, rest: memoryview) -> None:
        """Pass received data to the reader, unless it was killed."""
        poll = select.poll()
        poll.register(sink, select.POLLOUT)
        while rest and not self._let_go:
            if poll.poll(_ROOM):
                rest = rest[os.write(sink, rest) :]

    def _hang_up(self) -> None:
        """Close the connection so that a thread that reads from it ends too."""
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: it is closed
            self._link.sock.shutdown(socket.SHUT_RDWR)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired where that takes longer."""
        if not self._ended.wait(timeout):
            import subprocess

            raise subprocess.TimeoutExpired("exec", timeout or 0.0)
        return self.returncode or 0

    def kill(self) -> None:
        """Close the connection, which ends what shanty starts in pods."""
        self._let_go = True
        self._hang_up()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    source, sink = os.pipe()
    return os.fdopen(source, "rb", 0), os.fdopen(sink, "wb", 0)


def _broken() -> tuple[type[Exception], ...]:
    """What comes of a connection that breaks."""
    from websocket import WebSocketException

    return (WebSocketException, OSError, ValueError, IndexError)


def _code_of(data: bytes) -> int:
    """The exit code in the last message, which is a Status of Kubernetes'."""
    status = json.loads(data)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    return _FAILED
