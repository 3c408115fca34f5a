"""Asks nvidia-smi how busy this host's GPUs are.

One nvidia-smi prints values every few seconds for the whole run, since starting it each time would
cost more than all other samples. A host without nvidia-smi, or without GPUs, has no values.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import Any, Dict, List, Optional

from shanty.runtime.channel import readable

_FIELDS = "index,utilization.gpu,memory.used,memory.total,name"
_EVERY = 5  # seconds
_MOST = 1 << 16  # bytes; what a pipe holds


Usage = Dict[str, Any]  # as in `resources.jsonl`: 0 … 1 and bytes, None where it is unknown


class GpuMonitor:
    """The GPUs of this host."""

    def __init__(self, program: str = "nvidia-smi") -> None:
        self._program = program
        self._pid = 0
        self._source = -1
        self._rest = b""
        self._read: Dict[int, List[Usage]] = {}  # since `usage` was last called, by GPU
        self._last: Dict[int, Usage] = {}

    def start(self) -> None:
        """Start nvidia-smi, if it is installed."""
        path = shutil.which(self._program)
        if path is None:
            return
        query = [f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits", f"--loop={_EVERY}"]
        source, sink = os.pipe()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._pid = os.posix_spawn(
                path,
                [path, *query],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in
                              ((null, 0), (sink, 1), (null, 2))],
                setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
            )  # fmt: skip
        except OSError:
            os.close(source)
            return
        finally:
            os.close(sink)
            os.close(null)
        os.set_blocking(source, False)
        self._source = source

    def usage(self) -> List[Usage]:
        """Return the values of each GPU since the last call; utilization is the mean."""
        self.drain()
        found = []
        for index, last in sorted(self._last.items()):
            values = self._read.get(index, [last])
            busy = [u for u in (each["utilization"] for each in values) if u is not None]
            mean = round(sum(busy) / len(busy), 4) if busy else None
            found.append({**last, "utilization": mean})
        self._read = {}
        return found

    def drain(self) -> None:
        """Take the values that have been printed."""
        while self._source >= 0 and readable([self._source], 0):
            data = os.read(self._source, _MOST)
            if not data:  # it has ended
                self._close()
                self._pid = 0
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                found = parse(line.decode(errors="replace"))
                if found is not None:
                    self._read.setdefault(found["index"], []).append(found)
                    self._last[found["index"]] = found

    def end(self) -> int:
        """End nvidia-smi; return its pid, as a sick driver may keep it alive, or 0."""
        self.drain()
        if self._source >= 0:
            self._close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        return self._pid

    def _close(self) -> None:
        os.close(self._source)
        self._source = -1


def parse(line: str) -> Optional[Usage]:
    """Return the values in one line; None for any other line."""
    words = [word.strip() for word in line.split(",", 4)]
    if len(words) < 5 or not words[0].isdigit():
        return None
    busy, used, total = (float(word) if _is_number(word) else None for word in words[1:4])
    return {
        "index": int(words[0]),
        "name": words[4],
        "utilization": None if busy is None else min(1.0, busy / 100),
        "memory": None if used is None else int(used) << 20,
        "memory_total": None if total is None else int(total) << 20,
    }


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdecimal()  # else "[N/A]", as of a part of a divided GPU
