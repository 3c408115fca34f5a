"""One line at the bottom of the terminal: how long, how many ranks, how far."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from shanty.runtime.spec import State, Status

_EVERY = 0.25  # seconds between two drawings


class StatusLine:
    """Draws over itself; `hide` before anything else is written."""

    def __init__(self, terminal: TextIO, *, visible: bool) -> None:
        self._terminal = terminal
        self._visible = visible
        self._shown = False
        self._drawn = 0.0
        self._began = time.monotonic()

    def show(self, status: Status, progress: Callable[[], str]) -> None:
        """Draw the line, if it is time to; `progress` is asked only then."""
        now = time.monotonic()
        if not self._visible or status.state.final or now < self._drawn + _EVERY:
            return
        self._drawn, self._shown = now, True
        elapsed = int(now - self._began)
        clock = f"{elapsed // 60:02d}:{elapsed % 60:02d}"
        if elapsed >= 3600:
            clock = f"{elapsed // 3600}:{elapsed // 60 % 60:02d}:{elapsed % 60:02d}"
        ranks = f"{status.up}/{status.ranks} ranks up" if status.ranks else f"{status.up} ranks up"
        if status.joined and status.state is State.STARTING:
            ranks += f", {status.joined} joined"
        state = status.state.value if status.stalled is None else "stalled"
        parts = [clock, state, ranks, progress()]
        text = " · ".join(part for part in parts if part)
        width = shutil.get_terminal_size().columns - 1
        self._terminal.write(f"\r\033[2m{text[:width]}\033[0m\033[K")
        self._terminal.flush()

    def hide(self) -> None:
        """Take the line away."""
        if self._shown:
            self._terminal.write("\r\033[K")
            self._terminal.flush()
            self._shown = False
            self._drawn = 0.0
