"""Searches a log in pieces. Regular expressions are tried in a process of their own.

Some of them never end on some texts, and only the end of its process stops Python's `re`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shanty.dashboard.errors import Refused

PIECE = 8 << 20  # bytes that are searched at a call, at most
LONGEST_PATTERN = 500
_CHUNK = 1 << 20
_SHOWN = 2000  # letters of a line with a match
_PATIENCE = 8.0  # seconds for a regular expression
_SLOTS = threading.BoundedSemaphore(4)  # of these at a time


def search(
    path: Path, query: str, *, start: int, limit: int, regex: bool, case: bool, piece: int = PIECE
) -> dict[str, Any]:
    """Search `piece` bytes from `start`, a line's begin, on; no more than `limit` matches.

    Returns `matches`, `next` and `scanned`; 422 for an invalid expression, or a slow one.
    """
    if not query or len(query) > LONGEST_PATTERN:
        raise Refused(422, "the search is empty or too long", f"1 to {LONGEST_PATTERN} letters")
    if not regex:
        return scan(str(path), query, start, limit, regex, case, piece)
    try:
        re.compile(query)
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(422, f"invalid regular expression: {query!r}", str(error)) from None
    asked = json.dumps([str(path), query, start, limit, regex, case, piece])
    words = [sys.executable, "-m", "shanty.dashboard.log_search"]
    if not _SLOTS.acquire(blocking=False):
        raise Refused(429, "too many such searches are going on", "", "try again in a moment")
    try:
        done = subprocess.run(
            words, input=asked, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise Refused(
            422,
            "the search took too long",
            f"that expression takes more than {_PATIENCE:.0f} s on these lines",
            "write it without nested repetitions as (a+)+, or search for a text",
        ) from None
    finally:
        _SLOTS.release()
    return found


def scan(
    path: str, query: str, start: int, limit: int, regex: bool, case: bool, piece: int
) -> dict[str, Any]:
    """Search, without any bound on time."""
    fits = _matcher(query, regex=regex, case=case)
    matches: list[dict[str, Any]] = []
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"matches": [], "next": None, "scanned": 0}
    try:
        offset, end = start, start + piece
        while offset < end:
            data = os.pread(file, _CHUNK, offset)
            cut = data.rfind(b"\n") + 1
            if not cut:
                if len(data) < _CHUNK:  # the end of the file, or a line that is being written
                    return {"matches": matches, "next": None, "scanned": offset - start}
                if fits(data):  # a part of a very long line
                    matches.append(_match(data, offset))
                offset += len(data)
                continue
            for line in data[: cut - 1].split(b"\n"):
                if fits(line):
                    matches.append(_match(line, offset))
                offset += len(line) + 1
                if len(matches) >= limit:
                    return {"matches": matches, "next": offset, "scanned": offset - start}
        return {"matches": matches, "next": offset, "scanned": offset - start}
    finally:
        os.close(file)


def _text(line: bytes) -> tuple[float | None, bytes]:
    stamp, _, rest = line.partition(b" ")
    _, _, text = rest.partition(b" ")
    try:
        return float(stamp), text
    except ValueError:
        return None, line


def _matcher(query: str, *, regex: bool, case: bool) -> Callable[[bytes], bool]:
    """Return what tells whether a line of the file has it; bytes are compared where they can be."""
    if regex:
        pattern = re.compile(query, 0 if case else re.IGNORECASE)
        return lambda line: bool(pattern.search(_text(line)[1].decode("utf-8", "replace")))
    if case:
        word = query.encode("utf-8", "replace")
        return lambda line: word in line and word in _text(line)[1]
    if query.isascii():
        small = query.lower().encode()
        return lambda line: small in line.lower() and small in _text(line)[1].lower()
    folded = query.casefold()
    return lambda line: folded in _text(line)[1].decode("utf-8", "replace").casefold()


def _match(line: bytes, offset: int) -> dict[str, Any]:
    time, text = _text(line)
    shown = text.decode("utf-8", "replace")
    return {"offset": offset, "time": time, "text": shown[:_SHOWN]}


if __name__ == "__main__":
    print(json.dumps(scan(*json.load(sys.stdin))))
