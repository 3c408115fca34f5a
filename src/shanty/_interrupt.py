"""Ctrl-C while the program `shanty` is being imported ends it without a traceback.

`shanty.program` imports this first, so it must import next to nothing itself.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` would import enum
import os
import sys

_PROGRAMS = ("shanty", "__main__.py")  # others that import us keep their handler


def _leave(number: int, _frame: object) -> None:
    os._exit(128 + number)


def restore() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


if (
    os.path.basename(sys.argv[0] if sys.argv else "") in _PROGRAMS
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
):
    _signal.signal(_signal.SIGINT, _leave)
