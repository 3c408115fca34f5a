"""Messages between lead and warden: one JSON object a line, over a pair of descriptors."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Tuple


class Channel:
    """One end of the line; `source` may be read without waiting, writes are short and wait."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.open = True
        self._rest = b""
        os.set_blocking(source, False)

    def send(self, **message: Any) -> None:
        """Send a message; when the other end is gone, `open` turns False."""
        data = memoryview((json.dumps(message) + "\n").encode())
        try:
            while data:
                try:
                    data = data[os.write(self.sink, data) :]
                except BlockingIOError:
                    import select

                    select.select([], [self.sink], [], 1.0)
        except OSError:
            self.open = False

    def receive(self) -> List[Dict[str, Any]]:
        """The messages that have come; when the other end is gone, `open` turns False."""
        while True:
            try:
                data = os.read(self.source, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.open = False
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


def decode_reports(rest: bytes, data: bytes) -> Tuple[List[Mapping[str, Any]], bytes]:
    """Split what the FIFO held into reports; a line that is no report is dropped."""
    *lines, rest = (rest + data).split(b"\n")
    reports: List[Mapping[str, Any]] = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            reports.append(value)
    return reports, rest
