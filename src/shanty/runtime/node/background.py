"""Does an agent's longer work in a thread beside its loop, one item after the other."""

from __future__ import annotations

import collections
import signal
import threading
import time
from typing import Callable, Deque, Sequence

_STARTED = 5.0  # seconds that are left to the ranks for their start


class Background:
    """A queue of work, with a thread while there is some. An error in an item is printed."""

    def __init__(self) -> None:
        self._work: Deque[Callable[[], None]] = collections.deque()
        self._left = 0
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """True when all work is done."""
        return self._left == 0

    def do(self, work: Callable[[], None]) -> None:
        """Queue `work`; it is done after all earlier work."""
        self._work.append(work)
        with self._lock:
            self._left += 1
            if self._left > 1:
                return  # the running thread does it
        thread = threading.Thread(target=self._run, name="background", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()  # signals are for the main thread
        except RuntimeError:  # the host, or the container, has too many
            self._run()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        while True:
            try:
                self._work.popleft()()
            except Exception:  # noqa: BLE001  the run goes on after any error
                import traceback  # not before the ranks start

                traceback.print_exc()
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    return


def load(modules: Sequence[str]) -> None:
    """Load modules that an agent may need later, once the ranks have started.

    Their files may be removed during the run, or replaced by those of another version.
    """

    def later() -> None:
        time.sleep(_STARTED)
        import importlib

        for name in modules:
            importlib.import_module(name)

    Background().do(later)
