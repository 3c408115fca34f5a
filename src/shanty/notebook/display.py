"""Shows in a cell what the ranks write, and how far they are."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from shanty.cli.table import progress_text
from shanty.cli.terminal import Progress
from shanty.launch.follow import Line
from shanty.runtime.frames import STDERR, last_state
from shanty.runtime.rundir import RunDir, read_json
from shanty.tasks.cell_channel import Outcome, of_text

_EVERY = 0.2  # seconds between two looks at the progress


class Output:
    """Prints whole lines, each with its rank, and finds the outcomes among them."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], bytes] = {}

    def show(self, lines: Iterable[Line], bar: Bar | None) -> list[tuple[int, Outcome]]:
        """Print the lines; return what they say of cells: the stream, and an outcome on it."""
        found = []
        texts: list[tuple[bool, str]] = []
        for rank, record in lines:
            key = (rank, record.stream)
            text = self._parts.pop(key, b"") + record.text
            if not record.whole:
                self._parts[key] = text
                continue
            text, outcome = of_text(text)
            if outcome is not None:
                found.append((record.stream, outcome))
            if text or outcome is None:
                shown = last_state(text).lstrip(b"\r").decode("utf-8", "replace")
                texts.append((record.stream == STDERR, f"[{rank}] {shown}\n"))
        if texts and bar is not None:
            bar.hide()
        while texts:  # what goes to one stream in a row is written at once
            error = texts[0][0]
            many = next((at for at, each in enumerate(texts) if each[0] != error), len(texts))
            file = sys.stderr if error else sys.stdout
            file.write("".join(text for _, text in texts[:many]))
            file.flush()
            del texts[:many]
        return found


class Bar:
    """How far the ranks say that they are (`shanty.progress`), from now on."""

    def __init__(self, run: RunDir, *, rich: bool) -> None:
        self._run = run
        self._rich = rich
        self._seen = read_json(run.progress)  # of a cell before
        self._next = 0.0
        self._handle: Any = None
        self._line = Progress() if not rich and sys.stderr.isatty() else None

    def tick(self, *, last: bool = False) -> None:
        """Draw it, if there is something new and it is time to."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + _EVERY
        known = read_json(self._run.progress)
        if known is None or known == self._seen:
            return
        self._seen = known
        text = progress_text(self._run)
        if self._rich:
            self._draw(text, known.get("done"), known.get("total"))
        elif self._line is not None:
            self._line(text)

    def hide(self) -> None:
        """Take it from the terminal's last line; in a notebook it has a place of its own."""
        if self._line is not None:
            self._line("")

    def _draw(self, text: str, done: Any, total: Any) -> None:
        share = f'value="{done}" max="{total}"' if total else ""
        shown = {
            "text/plain": text,
            "text/html": f"<progress {share}></progress> {html.escape(text)}",
        }
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
