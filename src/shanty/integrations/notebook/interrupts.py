"""Takes Ctrl-C, and a notebook's "Interrupt", at points where nothing is lost by it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While it is entered, SIGINT is noted, and raised by `check` alone.

    Threads other than the main one get no interrupts, so there it does nothing.
    """

    def __init__(self) -> None:
        self._noted = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._noted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt where there was an interrupt since the last time."""
        noted, self._noted = self._noted, False
        if noted:
            raise KeyboardInterrupt
