"""This machine: a process is started as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from shanty.launch.host import Host


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
