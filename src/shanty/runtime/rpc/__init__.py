"""Work on a host before and after a run, by a server that the command line starts there.

`server.py` serves requests over its standard streams; every other module holds some of its verbs.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import subprocess
from typing import Any, Callable, List, Mapping, Optional, Protocol

Ask = Mapping[str, Any]  # a request; every verb takes one, the bytes with it, and a way to report
Say = Callable[[Mapping[str, Any]], None]


class Data(Protocol):
    """The raw bytes that come with a request."""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; b"" at the end."""


def output_of(argv: List[str], timeout: float, cwd: Optional[str] = None) -> Optional[str]:
    """The output of a program; None when it does not run, fails, or takes longer."""
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=timeout, check=True, cwd=cwd,
        ).stdout.decode(errors="replace")  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
