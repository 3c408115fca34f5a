"""A command in a pod, as far as its connection goes."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

pytest.importorskip("websocket")

from shanty.launch.kubernetes.pod_exec import ExecProcess

BINARY = 2  # of WebSocket


class Link:
    """The cluster's end: `messages` come one after the other, then nothing until it is ended."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = iter(messages)
        self._over = threading.Event()
        self.sock: Any = self

    def recv_data(self) -> tuple[int, bytes]:
        found = next(self._messages, None)
        if found is None:
            self._over.wait(30)
            raise OSError
        return BINARY, found

    def send_binary(self, data: bytes) -> None:
        del data

    def shutdown(self, _how: int = 0) -> None:
        self._over.set()


def test_output_and_code() -> None:
    causes = [{"reason": "ExitCode", "message": "7"}]
    end = b"\3" + json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()
    process = ExecProcess(Link(b"\1out", b"\2err", end))
    with process.stdin, process.stdout, process.stderr:
        assert process.wait(10) == 7
        assert (process.stdout.read(), process.stderr.read()) == (b"out", b"err")


def test_who_lets_go_need_not_read_the_rest() -> None:
    process = ExecProcess(Link(*[b"\1" + bytes(1 << 20)] * 3))
    with process.stdin, process.stdout, process.stderr:
        assert process.poll() is None
        process.kill()
        process.wait(10)
