"""Shows how far the hosts of a run are prepared."""

from __future__ import annotations

import io
import re
import shutil
import sys
from typing import TextIO

_FIGURES = re.compile(r", [\d.]+ of [\d.]+ \S+$")  # how far a step is


class Progress:
    """Shows what is done to make hosts ready: one line that changes, or a line for each step."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr or io.StringIO()  # a program without a terminal has none
        self._live = self._out.isatty()
        self._said: set[str] = set()
        self.quiet = False

    def finding(self, text: str) -> None:
        """Say something that is to stay on the screen, quiet or not."""
        self("")
        self._out.write(f"shanty: {text}\n")
        self._out.flush()

    def __call__(self, text: str) -> None:
        """Show `text`, "" for none; in a log each step appears once, without its figures."""
        if self.quiet:
            return
        if self._live:
            draw(self._out, text)
        elif text:
            step = _FIGURES.sub("", text)
            if step not in self._said:
                self._said.add(step)
                self._out.write(f"shanty: {step}\n")
        self._out.flush()


def draw(out: TextIO, text: str) -> None:
    """Replace the last line of a terminal; "" clears it."""
    width = shutil.get_terminal_size().columns - 1
    out.write(f"\r\033[2m{text[:width]}\033[0m\033[K" if text else "\r\033[K")
    out.flush()
