"""Follows one run for one client: what its logs get, how it stands, its metrics.

All is read from files when the client has taken what was sent before, so nothing is kept for it.
A client that takes less than is written receives an event `behind`, and goes on near the end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from shanty.dashboard import logs
from shanty.dashboard.access import Caller
from shanty.dashboard.detail import summary
from shanty.dashboard.events import BEAT, COMMENT, event
from shanty.dashboard.metrics import MetricsCache
from shanty.runtime.rundir import RunDir, read_json

MOST_LOGS = 64  # in one stream
_EVERY, _ENDED = 0.2, 1.0  # seconds between two looks while the run is on, and after its end
_PIECE = 32 << 10  # bytes of one log at a look: 160 kB/s, more than anybody reads
_BEHIND = 256 << 10  # bytes that a client may lack
_LAST = 16 << 10  # bytes before the end that it is sent then
_LONG_LINE = logs.LARGEST + 64


class Tail:
    """Reads on in some logs of a run, each from its offset."""

    def __init__(self, run: RunDir, names: list[str], offsets: dict[str, int]) -> None:
        self._run = run
        self._names = names
        self._attempt = run.attempts()[-1]
        self._offsets = {
            name: logs.next_line(path, offsets.get(name, logs.size_of(path)))
            for name in names
            for path in [logs.log_of(RunDir(run.path, self._attempt), name)]
        }

    def read(self) -> list[bytes]:
        """Return events of what is new: at most one piece of each log."""
        attempt = self._run.attempts()[-1]
        if attempt != self._attempt:  # its logs start from zero
            self._attempt = attempt
            self._offsets = dict.fromkeys(self._names, 0)
        files = RunDir(self._run.path, attempt)
        found = []
        for name in self._names:
            found += self._of(logs.log_of(files, name), name)
        return found

    def _of(self, path: Path, name: str) -> list[bytes]:
        offset, size = self._offsets[name], logs.size_of(path)
        if size <= offset:
            return []
        rank = int(name) if name.isdigit() else name
        found = []
        if size > offset + _BEHIND:
            found.append(event("behind", {"rank": rank, "size": size}))
            offset = self._offsets[name] = logs.next_line(path, size - _LAST)
        with path.open("rb") as file:
            data = os.pread(file.fileno(), _PIECE, offset)
            lines, used = logs.lines_of(data, offset)
            if not lines and len(data) == _PIECE:  # a very long line
                data = os.pread(file.fileno(), _LONG_LINE, offset)
                lines, used = logs.lines_of(data, offset)
        if lines:
            self._offsets[name] = offset + used
            words = {"rank": rank, "attempt": self._attempt, "begin": offset, "end": offset + used}
            found.append(event("log", {**words, "lines": lines}))
        return found


async def events(
    caller: Caller, run: RunDir, tail: Tail, metrics: MetricsCache
) -> AsyncGenerator[bytes]:
    """Yield what changes of a run, until the server ends or the run is deleted."""
    here = caller.here
    subscription = here.hub.subscribe()
    others = _Others(run, metrics)
    try:
        final = any(entry.status.ended is not None for entry in here.runs.known([run.id]))
        silent = 0.0
        while not here.closing.is_set():
            pending = subscription.take()
            if run.id in pending:
                entry = pending[run.id]
                if entry is None:
                    yield event("gone", {"id": run.id})
                    return
                final = entry.status.ended is not None
                yield event("status", summary(entry, here.account).model_dump())
            found = await run_in_threadpool(lambda: [*tail.read(), *others.read()])
            for one in found:
                yield one
            silent = 0.0 if found or pending else silent
            if silent >= BEAT:
                silent = 0.0
                yield COMMENT
            wait = _ENDED if final and not found else _EVERY
            silent += wait
            try:
                await asyncio.wait_for(subscription.ready.wait(), wait)
            except TimeoutError:
                continue
    finally:
        here.hub.unsubscribe(subscription)


class _Others:
    """What else a run writes: metrics and how far it is."""

    def __init__(self, run: RunDir, metrics: MetricsCache) -> None:
        self._run = run
        self._metrics = metrics
        self._sizes: dict[str, tuple[int, int]] = {}

    def read(self) -> list[bytes]:
        found = []
        if self._changed(self._run.metrics):
            last = self._metrics.of(self._run.metrics).last
            found.append(event("metrics", {"values": dict(last)}))
        if self._changed(self._run.progress):
            found.append(event("progress", read_json(self._run.progress)))
        return found

    def _changed(self, path: Path) -> bool:
        try:
            known = path.stat()
        except OSError:
            return False
        stamp = (known.st_mtime_ns, known.st_size)
        before = self._sizes.get(path.name)
        self._sizes[path.name] = stamp
        return before != stamp
