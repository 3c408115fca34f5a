"""RPC clients of hosts that are folders: each has a home of its own on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.site import Host


class Folder:
    """A connection to a host whose login has another home, and nothing of our environment."""

    def __init__(self, host: Host, home: Path, **environ: str) -> None:
        self.host = host
        self._environ = {"HOME": str(home), "PATH": os.defpath, **environ}
        self._home = home

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `argv` there."""
        return subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            bufsize=0, cwd=self._home, env=self._environ, process_group=0,
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def client(name: str, home: Path, python: str = "", **environ: str) -> Iterator[RpcClient]:
    """The RPC client of a host `name` whose home is the given folder."""
    home.mkdir(exist_ok=True)
    base = python or os.path.realpath(sys.executable)
    found = RpcClient.connect(Folder(Host(name), home, **environ), pythons=[base])
    try:
        yield found
    finally:
        found.close()
