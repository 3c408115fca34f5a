"""Shows from outside whether the main thread of a Python rank moves.

While a run is silent, the node agent sends a signal to ranks that seem to stand still. Its handler
is Python's, so it runs only when the main thread returns to the interpreter: no answer means that
the thread has been inside one and the same call of C since. After each signal the interpreter
resumes a wait for a lock with a time limit; so an answer also says whether it was given from the
same call of a Python function, at the same instruction, as the previous answer.

The answer is a line in `stacks/rank-K.pulse`: the pid, how many signals were answered, and how
many of the answers came from another place than the one before.
"""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import Any
else:
    try:
        import _signal as signal  # CPython's own part: the rest brings enum, which takes 4 ms
    except ImportError:
        import signal


class _Mark:
    """A mark in a frame, removed with it. To a debugger it is a function that traces nothing."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, *_: object) -> None:
        return None


class ProgressProbe:
    """Answers the signal `number` in the file at `path`."""

    def __init__(self, path: str, number: int) -> None:
        self._path = path
        self._pid = os.getpid()
        self._answered = self._moves = 0
        self._mark: _Mark | None = None
        self._tell("wb")
        try:
            signal.signal(number, self._answer)
        except ValueError:  # another thread than the main one imports MPI: no answer is possible
            with contextlib.suppress(OSError):
                os.unlink(path)
            return
        signal.siginterrupt(number, False)  # calls of the system go on by themselves
        self._number, self._set = number, signal.signal
        signal.signal = self._watched  # type: ignore[assignment]  # what the script's own `signal.signal` comes down to

    def _watched(self, number: int, handler: Any) -> Any:
        """Sets a handler; a script that takes our signal for itself is sent no more of them."""
        before = self._set(number, handler)
        if number == self._number and os.getpid() == self._pid and handler != self._answer:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return before

    def _answer(self, _number: int, frame: FrameType | None) -> None:
        if frame is None or os.getpid() != self._pid:  # a child that has inherited this
            return
        self._answered += 1
        mark, place = self._mark, frame.f_lasti
        if mark is None or mark.place != place or frame.f_trace is not mark:
            self._moves += 1
            self._mark = None
            if sys.gettrace() is None:  # else that place is a debugger's
                self._mark = frame.f_trace = _Mark(place)
        self._tell("r+b")

    def _tell(self, mode: str) -> None:
        line = f"{self._pid:10} {self._answered:10} {self._moves:10}\n".encode()
        # The run's folder may have been removed, and no descriptor may be left.
        with contextlib.suppress(OSError), open(self._path, mode, buffering=0) as file:
            file.write(line)
