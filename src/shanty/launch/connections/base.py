"""What a connection can do."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Protocol

from shanty.launch.cluster.host import Host


class Connection(Protocol):
    """A way to start processes on one host."""

    host: Host

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `argv` there with pipes for its three streams; nothing in it is expanded.

        The process ends when its standard input does (programs that shanty starts see to it).
        """

    def close(self) -> None:
        """Let go of a shared connection, if there is one."""
