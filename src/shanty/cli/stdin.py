"""What rank 0 reads: this process's own standard input."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable


def rank_zero_input(*, closed: bool) -> tuple[int, Callable[[], None]]:
    """A descriptor for the launcher's standard input, and what to call once it has it.

    A file or a pipe is handed over as it is, so it outlives this process. From a terminal in
    the foreground a thread passes on what is typed; an empty file stands for anything else.
    """
    if not closed and sys.stdin is not None:
        try:
            mode = os.fstat(0).st_mode
        except OSError:
            mode = 0
        if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return 0, lambda: None
        if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp():
            return _typed()
    null = os.open(os.devnull, os.O_RDONLY)
    return null, lambda: os.close(null)


def _typed() -> tuple[int, Callable[[], None]]:
    source, sink = os.pipe()

    def pass_on() -> None:
        try:
            while data := os.read(0, 4096):
                os.write(sink, data)
        except OSError:
            pass  # the run has ended, or the terminal is gone
        finally:
            os.close(sink)

    def handed_over() -> None:
        os.close(source)
        threading.Thread(target=pass_on, daemon=True).start()

    return source, handed_over
