"""Calls of a launcher for ssh."""

from __future__ import annotations

import os
import socket
from typing import cast

import pytest

from shanty.runtime.agent.rsh_server import _Call
from shanty.runtime.agent.worker import Worker


def test_a_launcher_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shanty.runtime.agent.rsh_server._ROOM", 0.05)
    read, write = os.pipe()
    ours, theirs = socket.socketpair()
    call = _Call(cast(Worker, None), ours, (write, os.dup(write)), "prted")
    for _ in range(4):
        call.write(1, bytes(1 << 16))
    call.end(0)
    assert len(os.read(read, 1 << 20)) == 1 << 16  # what the pipe holds
    assert b'"code": 0' in theirs.recv(100)
    os.close(read)
    theirs.close()
