"""Reads what `frames` wrote: the records of a log, all of them, its newest, or its last lines."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from shanty.runtime.frames import STDERR, STDOUT, TAIL, last_state


class Record(NamedTuple):
    """One line, or a piece of one, that a rank wrote; `whole` when its newline was there."""

    time: float
    stream: int
    text: bytes
    whole: bool


def parse(data: bytes) -> Tuple[List[Record], int]:
    """Read the framed lines in `data`; returns them and how many bytes they took.

    A line whose end has not been written yet is left for the next read; a line that is not
    framed (a damaged file) is passed on as text of stderr.
    """
    end = data.rfind(b"\n") + 1
    return [_record(line) for line in data[: end - 1].split(b"\n")] if end else [], end


def _record(line: bytes) -> Record:
    stamp, _, rest = line.partition(b" ")
    mark, _, text = rest.partition(b" ")
    try:
        return Record(float(stamp), int(mark[:1]), text, not mark.endswith(b"+"))
    except ValueError:
        return Record(0.0, STDERR, line, True)


def read_records(path: str, chunk: int = 1 << 20) -> Iterator[Record]:
    """Yields all records of the log at `path`, in the order of the file; none when it is absent."""
    rest = b""
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except FileNotFoundError:
        return
    with file:
        while True:
            data = file.read(chunk)
            if not data:
                return
            records, used = parse(rest + data)
            rest = (rest + data)[used:]
            yield from records


def last_lines(
    path: str, count: int, reach: int = TAIL, streams: Sequence[int] = (STDERR, STDOUT)
) -> List[str]:
    """Returns the last `count` lines of the log at `path`, of the first stream that has any."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - reach)
            file.seek(start)
            data = file.read()
    except OSError:
        return []
    if start:
        data = data[data.find(b"\n") + 1 :]
    lines: Dict[int, List[bytes]] = {STDOUT: [b""], STDERR: [b""]}
    for record in parse(data)[0]:
        target = lines.setdefault(record.stream, [b""])
        target[-1] += record.text
        if record.whole:
            target.append(b"")
    for stream in streams:
        shown = (
            last_state(line).strip(b"\r\0").decode("utf-8", "replace") for line in lines[stream]
        )
        kept = [line for line in shown if line.strip()]
        if kept:
            return kept[-count:]
    return []
