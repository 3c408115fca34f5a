"""Work on a host before and after a run, by a server that the command line starts there.

`server.py` serves requests over its standard streams; every other module holds some of its verbs.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence, Tuple

_REPORT = 1.0  # seconds between two reports on a program that takes long

Ask = Mapping[str, Any]  # a request; every verb takes one, the bytes with it, and a way to report
Say = Callable[[Mapping[str, Any]], None]


class Data(Protocol):
    """The raw bytes that come with a request."""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; b"" at the end."""


def seldom(say: Say, seconds: float) -> Say:
    """Returns `say` without the words that come less than so many seconds after others."""
    next_time = 0.0

    def say_seldom(words: Mapping[str, Any]) -> None:
        nonlocal next_time
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + seconds
            say(words)

    return say_seldom


def run_long(
    words: Sequence[str], environ: Mapping[str, str], limit: float, report: Callable[[], None]
) -> Tuple[Optional[int], str]:
    """The exit code of a program, None after `limit` seconds, and its output.

    `report` is called now and then. When it fails, the client is gone, and the program is ended.
    """
    import tempfile  # which most verbs do without

    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=dict(environ),
        )  # fmt: skip
        until = time.monotonic() + limit
        try:
            while process.returncode is None and time.monotonic() < until:
                report()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_REPORT)
            code = process.returncode
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")
