"""What the checks of many steps share: memory stays flat, and no thread, file or object is left."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

OBJECTS = 250  # of Python that may be there afterwards and were not before


class Steady:
    """Compares what is there after many steps with what was there when it was made.

    `memory` is a line of /proc/self/status.
    """

    def __init__(self, memory: str = "VmRSS") -> None:
        gc.collect()
        self.memory = memory
        self.objects = len(gc.get_objects())
        self.resident = self._resident()
        self.held = self._held()

    def check(self, growth: int) -> None:
        """At most `growth` bytes more; as many threads and open files; hardly more objects."""
        gc.collect()
        grown = self._resident() - self.resident
        objects = len(gc.get_objects()) - self.objects
        print(f"{grown} bytes and {objects} objects more", flush=True)
        assert objects < OBJECTS, f"{objects} objects more"
        assert self._held() == self.held, (self._held(), self.held)
        assert grown < growth, f"{grown} bytes more"

    def _resident(self) -> int:
        """Bytes of this process in memory."""
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith(f"{self.memory}:"))
        return 1024 * int(line.split()[1])

    @staticmethod
    def _held() -> tuple[int, int]:
        """Threads of Python, and open files."""
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
