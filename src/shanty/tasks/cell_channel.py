"""The messages between a notebook and its ranks: orders to the ranks, outcomes back.

An order is a line of JSON and the bytes that it announces, on rank 0's standard input. An outcome
is a line on both streams of a rank; once it is read, all earlier output of the rank has been read.
What a cell returns or raises is a file:

results/1/cell-N-value-K.pickle    the value of cell N in rank K
results/1/cell-N-error-K.pickle    what it raised there, as `outcome` has it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any, NamedTuple

from shanty.runtime.rundir import RunDir

MARK = b"\x1e"  # ASCII's record separator, which begins a rank's outcome of a cell
RUN, PUSH, PULL = "run", "push", "pull"


class Order(NamedTuple):
    """What all ranks are to do: run the source `body`, take the pickled value `body`, give one.

    `cell` is the number of the order, `name` that of a variable.
    """

    kind: str
    cell: int
    name: str = ""
    body: bytes = b""


class Outcome(NamedTuple):
    """What came of an order in one rank of `size`; `at` is when, in seconds since 1970.

    `value` and `error` are the sizes of their files in bytes, None without one.
    """

    cell: int
    rank: int
    size: int
    host: str
    at: float
    value: int | None = None
    error: int | None = None
    interrupted: bool = False


class Shown:
    """Stands for a value that was not sent: it has the same repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def encode(order: Order) -> bytes:
    """Return an order as it is sent."""
    head = {"kind": order.kind, "cell": order.cell, "name": order.name, "size": len(order.body)}
    return json.dumps(head).encode() + b"\n" + order.body


def read_order(file: IO[bytes]) -> Order | None:
    """Read the next order; None at the end."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    size = int(head.pop("size"))
    body = file.read(size)
    return Order(**head, body=body) if len(body) == size else None


def as_line(outcome: Outcome) -> bytes:
    """Return an outcome as a rank writes it."""
    return MARK + json.dumps(outcome._asdict()).encode() + b"\n"


def of_text(text: bytes) -> tuple[bytes, Outcome | None]:
    """Split a line of a rank: what it wrote itself, and the outcome that follows it."""
    written, mark, word = text.rpartition(MARK)  # the cell may have written one itself
    if not mark:
        return text, None
    try:
        return written, Outcome(**json.loads(word))
    except (ValueError, TypeError):  # the script has written such a byte itself
        return text, None


def value_file(run: RunDir, cell: int, rank: int) -> Path:
    """Return where the value of a cell is."""
    return run.results / f"cell-{cell}-value-{rank}.pickle"


def error_file(run: RunDir, cell: int, rank: int) -> Path:
    """Return where the exception of a cell is."""
    return run.results / f"cell-{cell}-error-{rank}.pickle"
