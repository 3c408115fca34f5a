"""What a connection can do, and the one to this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from shanty.launch.host import Host


class Process(Protocol):
    """A command on a host, as `subprocess.Popen` shows one."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Where its input is written."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where its output is read."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """Where its standard error is read."""

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""

    def poll(self) -> int | None:
        """Look whether it has ended; its exit code."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired where that takes longer."""

    def kill(self) -> None:
        """End it, or let go of it where it then ends by itself."""


class Connection(Protocol):
    """A way to start processes on one host."""

    host: Host

    def start(self, argv: Sequence[str]) -> Process:
        """Start `argv` there with pipes for its three streams; nothing in it is expanded.

        The process ends when its standard input does (programs that shanty starts see to it).
        """

    def close(self) -> None:
        """Let go of a shared connection, if there is one."""


class LocalTransport:
    """Starts processes here, in a group of their own, so that Ctrl-C is ours to handle."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `argv` in the home folder, as a login would."""
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=Path.home(),
            process_group=0,
        )

    def close(self) -> None:
        """Nothing is held."""
