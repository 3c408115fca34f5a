"""Writes the stacks of all threads of a Python rank when its node agent requests them.

A thread of its own waits for requests and reads the frames of the others while it holds the
interpreter lock (GIL). Nothing can change or free a frame during that time, which a signal handler
cannot rule out: `faulthandler.register(all_threads=True)` reads the frames of running threads, and
crashes. Neither a signal nor anything else disturbs the other threads.

The thread holds no file descriptor while it waits: it opens the FIFO `stacks/rank-K.ask`, and that
blocks until a writer comes. A request is one line, the name of the request. The answer replaces
`stacks/rank-K.txt`, whose first line repeats the name.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import Mapping
else:
    try:
        import _signal as signal  # CPython's own part: the rest brings enum, which takes 4 ms
    except ImportError:
        import signal

_THREADS = _FRAMES = 100  # that one answer has at most, of the threads and of each stack
# Ours: one may be at work in the main thread, the other is around calls that wait for ranks.
_NOT_SHOWN = ("/rank/progress_probe.py", "/rank/meeting.py")
_PAUSE = 1.0  # seconds until the FIFO is tried again, as when no file descriptor was left


class StackServer:
    """Answers requests at `path`.ask in the file `path`.txt, from a thread of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        threading = sys.modules.get("threading")
        self._main = threading.main_thread().ident if threading else _thread.get_ident()
        self._serves = False
        self._paused = False

    def start(self) -> None:
        """Starts to serve, unless this Python or the system does not allow it."""
        # Without a GIL, a frame that another thread runs cannot be read.
        if "t" in getattr(sys, "abiflags", "") or not hasattr(sys, "_current_frames"):
            return
        self._start_thread()
        if sys.version_info >= (3, 12) and os.path.isdir("/proc/self/task"):
            os.register_at_fork(before=self._pause, after_in_parent=self._resume)

    def _start_thread(self) -> None:
        # A signal that the script blocks in its threads must not come to this one instead.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(f"{self._path}.ask", 0o600)
            self._serves = True
            _thread.start_new_thread(self._serve, ())
        except (OSError, RuntimeError):  # a full disk, too many threads: there are signals, too
            self._serves = False
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}.ask")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _pause(self) -> None:
        """Ends the thread if it is the only other one: Python 3.12 warns of forks with threads."""
        mine = self._serves and os.getpid() == self._pid
        if not mine or len(os.listdir("/proc/self/task")) != 2:
            return
        self._paused, deadline = True, time.monotonic() + _PAUSE
        fifo = f"{self._path}.ask"
        while len(os.listdir("/proc/self/task")) == 2 and time.monotonic() < deadline:
            if not os.path.exists(fifo):  # the run directory is gone: nothing wakes the thread
                break
            with contextlib.suppress(OSError):  # it does not wait in `open` yet, or no more
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            time.sleep(0.0001)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._serves:
                self._start_thread()

    def _serve(self) -> None:
        while not self._paused:
            try:
                self._serve_one()
            except FileNotFoundError:  # the run directory is gone
                break
            except (OSError, MemoryError):
                time.sleep(_PAUSE)
        self._serves = False

    def _serve_one(self) -> None:
        """Waits for a request and answers it.

        Each call of the system gives up the GIL, and busy threads give it back after 5 ms each.
        """
        fifo = os.open(f"{self._path}.ask", os.O_RDONLY | os.O_CLOEXEC)
        try:
            requests = os.read(fifo, 4096).split()
        finally:
            os.close(fifo)
        if not requests:
            return
        text = stacks_text(current_frames(), _thread.get_ident(), self._main or 0)
        data = requests[-1] + b"\n" + text.encode(errors="backslashreplace")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = os.open(f"{self._path}.new", flags, 0o644)
        try:
            if os.write(file, data) == len(data):  # else the disk is full
                os.replace(f"{self._path}.new", f"{self._path}.txt")
        finally:
            os.close(file)


def current_frames() -> Mapping[int, FrameType]:
    """Returns the innermost frame of each thread.

    Before Python 3.12 a garbage collection within the call can end in a deadlock, if it gives up
    the GIL (https://github.com/python/cpython/issues/106883).
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def stacks_text(frames: Mapping[int, FrameType], own: int, main: int) -> str:
    """Returns the stacks as faulthandler writes them: without that of `own`, `main` the last.

    Nothing in here gives up the GIL of its own accord.
    """
    lines = []
    others = [ident for ident in frames if ident not in (own, main)]
    for ident in [*others[: _THREADS - 1], main]:
        if ident not in frames:
            continue
        lines.append(
            f"{'Current thread' if ident == main else 'Thread'} 0x{ident:016x}"
            " (most recent call first):"
        )
        frame: FrameType | None = frames[ident]
        for _ in range(_FRAMES):
            while frame is not None and frame.f_code.co_filename.endswith(_NOT_SHOWN):
                frame = frame.f_back
            if frame is None:
                break
            code = frame.f_code
            name = code.co_filename.replace("\n", "\\n")
            lines.append(f'  File "{name}", line {frame.f_lineno or 0} in {code.co_name}')
            frame = frame.f_back
        else:
            lines += ["  ..."] if frame is not None else []
    return "\n".join([*lines, ""])
