"""Reads CSV text as XGBoost has it: numbers only, no header, no quotes; an empty field is missing.

NumPy reads all lines of a block at once. A block with rare or wrong text is read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.digits import PAD, Bytes, Digits, numbers_at
from shanty.xgboost.text.files import PathLike, read_share
from shanty.xgboost.text.line_by_line import number, shown
from shanty.xgboost.text.rows import Malformed, Rows

CHUNK = 1 << 18  # bytes: the arrays for one block stay in the processor's cache

Table = NDArray[np.float32]  # (rows, fields), NaN where a field is empty


def read_csv(
    files: Sequence[PathLike],
    rank: int,
    ranks: int,
    *,
    label_column: int = -1,
    weight_column: int = -1,
    delimiter: str = ",",
    sizes: Sequence[int] | None = None,
    skip: int = 0,
    extra: int = 0,
    chunk: int = CHUNK,
) -> Iterator[Rows]:
    """Dense rows of a rank's share, in blocks of about `chunk` bytes of text, if it has any.

    All rows have as many fields as the first row of the share. Other shares may differ.

    Args:
        label_column, weight_column: from 0; below 0: none.
        delimiter: one character.
        sizes: of the files, if they are known (see `measure()`).
        skip: rows to leave out at the beginning of the share, from `groups_of_share`.
        extra: rows to read beyond its end, likewise.

    Raises:
        FormatError: a line is not a row, or its number of fields differs from the line before.
        OSError: a file cannot be read.
        ValueError: a wrong argument, at once.
    """
    if len(delimiter) != 1 or delimiter in "0123456789+-.eE\r\n" or not delimiter.isascii():
        raise ValueError(f"delimiter={delimiter!r}: give one character that no number has")
    if label_column == weight_column and label_column >= 0:
        raise ValueError(f"label_column and weight_column are both {label_column}")
    label, weight = (each if each >= 0 else None for each in (label_column, weight_column))
    parse = _Parser(label, weight, delimiter)
    return read_share(files, sizes, parse, rank, ranks, chunk, skip, extra)


class _Parser:
    """Makes rows of one block after another, all of one width."""

    def __init__(self, label: int | None, weight: int | None, delimiter: str) -> None:
        self._named = [
            (n, at) for n, at in (("label", label), ("weight", weight)) if at is not None
        ]
        self._delimiter = delimiter
        self._digits = Digits()
        self._width: int | None = None  # fields in a line

    def __call__(self, text: Bytes) -> Rows | None:
        table = _table_at_once(self._digits, text, self._delimiter)
        if table is not None and self._width not in (None, table.shape[1]):
            table = None
        rows = None if table is None else self._rows(table)
        if rows is None:  # uncertain: a missing label, not a number, another width, not a row
            table = self._by_line(text.tobytes())
            rows = None if table is None else self._rows(table)
        if table is not None and rows is not None:
            self._width = table.shape[1]
        return rows

    def _rows(self, table: Table) -> Rows | None:
        """The rows of a table; None if a label, a weight or every feature is missing."""
        named = dict(self._named)
        special = list(named.values())
        if table.shape[1] <= max(special, default=0) or table.shape[1] == len(special):
            return None if special else Rows(table, None, None, None, None)
        if np.isnan(table[:, special]).any():
            return None
        taken = {what: table[:, at].copy() for what, at in named.items()}
        data = np.delete(table, special, axis=1)
        return Rows(data, None, taken.get("label"), taken.get("weight"), None)

    def _by_line(self, text: bytes) -> Table | None:
        """All fields, line by line. Raises Malformed for the first line that is not a row."""
        table: list[list[float]] = []
        start, width = 0, self._width
        for line in re.split(rb"[\n\r]", text):
            if line:
                try:
                    row = self._fields(line, width)
                except ValueError as error:
                    raise Malformed(start, str(error)) from None
                width = len(row)
                table.append(row)
            start += len(line) + 1
        with np.errstate(over="ignore"):
            return np.array(table, np.float64).astype(np.float32) if table else None

    def _fields(self, line: bytes, width: int | None) -> list[float]:
        """A line's fields. Raises ValueError if it is not a row of `width` fields."""
        row = []
        for place, field in enumerate(line.split(self._delimiter.encode())):
            bare = field.strip(b" \t")
            value = number(bare) if bare else np.nan
            if value is None:
                raise ValueError(
                    f"field {place} (from 0) is {shown(bare)}, which is not a number; remove a "
                    "line of names, and convert words to numbers"
                )
            row.append(value)
        if width not in (None, len(row)):
            raise ValueError(
                f"it has {len(row)} fields, and rows before it have {width}: all rows must have "
                "the same number; leave a missing field empty between two delimiters"
            )
        for what, at in self._named:
            if at >= len(row):
                raise ValueError(
                    f"{what}_column={at}, and it has {len(row)} fields (from 0) when cut at "
                    f"{self._delimiter!r}: correct {what}_column or delimiter"
                )
            if np.isnan(row[at]):
                raise ValueError(f"its {what} (field {at} from 0) is empty or nan: give a number")
        if len(row) == len(self._named):
            raise ValueError(
                "it has no field beside label and weight when cut at "
                f"{self._delimiter!r}: correct delimiter"
            )
        return row


def _table_at_once(of: Digits, block: Bytes, delimiter: str) -> Table | None:
    """All fields; None if they cannot be read for certain, or the block has no lines."""
    of.read(block)
    text = of.text
    ends_line = text == ord("\n")
    if of.returns:
        ends_line |= text == ord("\r")
    marks = np.flatnonzero((ends_line | (text == ord(delimiter)))[PAD - 1 :]) + (PAD - 1)
    last = ends_line.take(marks)  # whether the field before the mark is its line's last
    starts, ends = marks[:-1] + 1, marks[1:]
    empty_line = last[:-1] & last[1:] & (starts == ends)
    last = last[1:]
    if empty_line.any():
        kept = ~empty_line
        starts, ends, last = starts[kept], ends[kept], last[kept]
    rows = int(np.count_nonzero(last))
    if rows == 0 or len(last) % rows:
        return None
    width = len(last) // rows
    if not last[width - 1 :: width].all():
        return None
    given = starts < ends
    if given.all():
        found = numbers_at(of, starts, ends)
        return None if found is None else found.reshape(rows, width)
    found = numbers_at(of, starts[given], ends[given])
    if found is None:
        return None
    table = np.full(len(starts), np.nan, np.float32)
    table[given] = found
    return table.reshape(rows, width)
