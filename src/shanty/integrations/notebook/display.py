"""Shows in a cell what the ranks write, and how far they are."""

from __future__ import annotations

import html
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any

from shanty.client.context import note
from shanty.client.progress import Progress
from shanty.client.runs import Line
from shanty.client.terminal.table import progress_text
from shanty.runtime.frames import STDERR, last_state
from shanty.runtime.rundir import RunDir, read_json
from shanty.tasks.cell_channel import Outcome, of_text

_KEPT = 200  # lines of a cell after its interrupt
_EVERY = 0.2  # seconds between two looks at the progress


class Output:
    """Prints whole lines, each with its rank, and finds the outcomes among them.

    `rich`: to a notebook, which flushes by itself; asked to flush, it would wait.
    """

    def __init__(self, *, rich: bool) -> None:
        self._rich = rich
        self._parts: dict[tuple[int, int], bytes] = {}
        self._held: deque[tuple[int, int, bytes]] | None = None
        self._dropped = 0

    def hold(self) -> None:
        """Print nothing more for now, and keep the last lines only: the cell was interrupted."""
        self._held = deque(maxlen=_KEPT)

    def release(self) -> None:
        """Print what was held back."""
        held, self._held = self._held or (), None
        dropped, self._dropped = self._dropped, 0
        if dropped:
            note(f"{dropped} lines are left out here; `shanty logs` has them")
        self._print([*held], None)

    def show(self, lines: Iterable[Line], bar: Bar | None) -> list[tuple[int, Outcome]]:
        """Print the lines; return what they say of cells: the stream, and an outcome on it."""
        found = []
        texts: list[tuple[int, int, bytes]] = []
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
                texts.append((rank, record.stream, text))
        if self._held is not None:
            self._dropped += max(0, len(self._held) + len(texts) - _KEPT)
            self._held.extend(texts)
        else:
            self._print(texts, bar)
        return found

    def _print(self, texts: Sequence[tuple[int, int, bytes]], bar: Bar | None) -> None:
        if texts and bar is not None:
            bar.hide()
        for stream, several in groupby(texts, lambda each: each[1]):
            file = sys.stderr if stream == STDERR else sys.stdout
            for rank, _, text in several:
                shown = last_state(text).lstrip(b"\r").decode("utf-8", "replace")
                file.write(f"[{rank}] {shown}\n")
            if not self._rich:
                file.flush()


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
