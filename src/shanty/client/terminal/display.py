"""Serves a run in the terminal: Ctrl-C, rank 0's input, a line that says how far it is."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, TextIO

from shanty.client.progress import draw
from shanty.runtime.counted import counted
from shanty.runtime.spec import State, Status

_EVERY = 0.25  # seconds between two drawings of the status line


@dataclass(frozen=True)
class Show:
    """Says how much is shown, and for whom; `log` is a file that all output goes to as well."""

    quiet: bool = False
    as_json: bool = False
    log: BinaryIO | None = None


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)  # the last is Ctrl-\ in a terminal
NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGHUP)


class Interrupts:
    """Counts the signals that end a run, for a session that follows it; `first` is the first one.

    `notices` are other signals that came, which are for the ranks.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.notices: list[signal.Signals] = []
        self._on_terminal = _has_terminal()

    @contextlib.contextmanager
    def counted(self, *, from_the_start: bool) -> Iterator[None]:
        """Count from the end of the block, or from its start: then none is missed.

        What takes long is better ended by Ctrl-C than brought to its end first.
        """
        if from_the_start:
            self._begin()
        yield
        self._begin()

    def _begin(self) -> None:
        for number in ENDING:
            signal.signal(number, self._count)
        for number in NOTICES:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup(1) has it
                signal.signal(number, self._note)

    def _count(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or number
        self.count += 1

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._on_terminal and not _has_terminal():
            os._exit(128 + number)  # the terminal was closed; the run goes on
        self.notices.append(signal.Signals(number))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def leave_when_interrupted() -> None:
    """Let these signals end this process in good order, also where they were ignored."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in ENDING:
        signal.signal(number, leave)


def rank_zero_input(*, closed: bool) -> tuple[int, Callable[[], None]]:
    """Return a descriptor for the launcher's standard input, and what to call once it has it.

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
        with contextlib.suppress(OSError):  # a terminal that is not this session's
            if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp():
                return _from_terminal()
    null = os.open(os.devnull, os.O_RDONLY)
    return null, lambda: os.close(null)


def _from_terminal() -> tuple[int, Callable[[], None]]:
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


def ranks_there(status: Status) -> str:
    """Write how many ranks and spares an elastic run has left."""
    ranks = f"{status.up} of {counted(status.ranks or 0, 'rank')}"
    return f"{ranks} and {counted(status.spares, 'spare')}" if status.spares else ranks


class StatusLine:
    """Shows how long a run is on, with how many ranks, and how far it is, on the last line.

    It draws over itself; `hide` it before anything else is written.
    """

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
        ranks = (
            f"{status.up}/{counted(status.ranks, 'rank')} up"
            if status.ranks
            else f"{counted(status.up, 'rank')} up"
        )
        if status.lost:
            ranks = ranks_there(status)
        if status.joined and status.state is State.STARTING:
            ranks += f", {status.joined} joined"
        state = status.state.value if status.stalled is None else "stalled"
        if status.state is State.PENDING and status.reason:
            ranks = status.reason
        parts = [clock, state, ranks, progress(), status.activity]
        draw(self._terminal, " · ".join(part for part in parts if part))

    def hide(self) -> None:
        """Take the line away."""
        if self._shown:
            draw(self._terminal, "")
            self._shown = False
            self._drawn = 0.0
