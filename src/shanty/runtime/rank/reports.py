"""Carries the reports of a rank to the node agent of its host: one line of JSON through a FIFO.

A line is shorter than PIPE_BUF, so the lines of many ranks never mix. Without a node agent, opening
the FIFO fails, and an open end turns into an error for poll(2), by which a rank learns that its
node agent has gone. Light: every rank imports this.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Union

    Value = Union[str, int, float, bool, None]

FIFO = "SHANTY_REPORTS"  # the environment variable that names the FIFO
FINALIZED = "SHANTY_FINALIZED"  # the descriptor that an elastic run's rank writes to at its end
UNWRITABLE = "its output cannot be kept"  # begins the why of a rank that a full disk ended
UNSPAWNED = "MPI started no workers"  # begins the why of a pool that it refused them
# What to do where a message is longer than its receiver expects.
TRUNCATED = (
    "let all ranks pass equal counts and types to the call, and make the same collective calls in "
    "the same order"
)
_PATIENCE = 10.0  # seconds that a full FIFO is waited for


def open_reports(path: str) -> int:
    """Opens a descriptor to write reports to; OSError without a node agent."""
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def note_finalized(word: bytes = b"1") -> None:
    """Tell `rank.exec` that this rank has left its world as all do, in an elastic run.

    word: b"0" where MPI_Finalize was left out, as the world had ranks that were started later.
    """
    number = os.environ.get(FINALIZED, "")
    if number.isdigit():
        os.write(int(number), word)


def encode(report: Mapping[str, Value]) -> bytes:
    """Returns the line for `report`; its texts are cut until it can be written in one piece.

    json is not used: importing it takes as long as starting the interpreter.
    """
    for longest in (select.PIPE_BUF, 200, 60, 20):
        fields = [_text(key, 40) + ":" + _value(value, longest) for key, value in report.items()]
        line = "{" + ",".join(fields) + "}\n"
        if len(line) <= select.PIPE_BUF:
            break
    return line.encode("ascii")


def _value(value: Value, longest: int) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value, longest)
    return repr(value)


def _text(text: str, longest: int) -> str:
    return '"' + "".join(map(_letter, text[:longest])) + '"'


def _letter(letter: str) -> str:
    if " " <= letter < "\x7f" and letter not in '"\\':
        return letter
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000  # such letters are a pair in JSON
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def send(fd: int, report: Mapping[str, Value]) -> bool:
    """Write `report`; False when the node agent has gone or does not read."""
    line, deadline = encode(report), time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            os.write(fd, line)
        except BlockingIOError:
            select.select([], [fd], [], 0.1)
        except OSError:
            return False
        else:
            return True
    return False
