"""Writes orders to rank 0's standard input, from a thread: an interrupt must not cut one in two."""

from __future__ import annotations

import os
import queue
import threading

_open: set[int] = set()  # our ends of the pipes


def _close_in_child() -> None:
    """The end of a pipe is what tells ranks that their notebook is gone: no child may hold it."""
    for fd in _open:
        os.close(fd)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


class Feed:
    """A pipe to rank 0. `source` is the end that it reads; close it once the run has it."""

    def __init__(self) -> None:
        self.source, self._sink = os.pipe()
        _open.add(self._sink)
        self.broken = False
        self._data: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True, name="shanty-feed")
        self._thread.start()

    def send(self, data: bytes) -> None:
        """Write `data` after all that was sent before."""
        self._data.put(data)

    def close(self) -> None:
        """End rank 0's input once all is written."""
        self._data.put(None)

    def _write(self) -> None:
        try:
            while (data := self._data.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._sink, view) :]
        except OSError:  # nobody reads any more
            self.broken = True
        finally:
            _open.discard(self._sink)
            os.close(self._sink)
