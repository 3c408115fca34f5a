"""What a connection can do, and the one to this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from shanty.runtime.site import Host


class Process(Protocol):
    """A command on a host, as `subprocess.Popen` shows one."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    returncode: int | None  # None while it runs

    def poll(self) -> int | None:
        """Look whether it has ended; its exit code."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired where that takes longer."""

    def kill(self) -> None:
        """End it, or close its pipes if it ends then."""


class Connection(Protocol):
    """A way to start processes on one host."""

    host: Host

    def start(self, argv: Sequence[str]) -> Process:
        """Start `argv` there with pipes for its three streams; no shell expands it.

        Programs that shanty starts end when their standard input does.
        """

    def close(self) -> None:
        """Close the shared connection, if it has one."""


class LocalTransport:
    """Starts processes here, in separate groups, so that they do not get a Ctrl-C."""

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
        """Does nothing."""
