"""Reads files beside the data: a line for each row (`.weight`, `.base_margin`) or group (`.group`).

Also counts the rows of the data, by whose number the lines are found.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.files import PathLike, blocks, byte_share, never, shortened
from shanty.xgboost.text.line_by_line import number, shown
from shanty.xgboost.text.rows import FormatError

_CHUNK = 1 << 18  # bytes
_PAUSE = 1 << 14  # lines between two calls of the caller's function
_WHOSE = "check that the file belongs to this data"


def count_rows(
    files: Sequence[PathLike],
    rank: int,
    ranks: int,
    *,
    comment: str | None = "#",
    sizes: Sequence[int] | None = None,
    between: Callable[[], None] = never,
) -> int:
    """Counts the rows that begin in a rank's share, before groups are made whole.

    Lines that are empty, or blank up to a comment, are not rows. Rows are not checked here.

    Args:
        comment: begins a comment; None: none does (CSV: a line of blanks is a row, too).
        sizes: of the files, if they are known (see `measure()`).
        between: is called between two pieces of the work, and may raise; likewise below.
    """
    each, start, stop = byte_share(files, sizes, rank, ranks)
    count = 0
    for block in blocks(files, each, start, stop, _CHUNK):
        count += _rows_in(block.text, comment)
        between()
    return count


def _rows_in(text: NDArray[np.uint8], comment: str | None) -> int:
    """Lines that are not empty; with a comment's beginning, those that are not blank before it."""
    ends = (text == ord("\n")) | (text == ord("\r"))
    if comment is None:
        begins = np.append(True, ends[:-1])
        return int(np.count_nonzero(begins & ~ends))
    filled = np.flatnonzero(text > ord(" "))
    first = filled.searchsorted(np.append(-1, np.flatnonzero(ends)))  # of each line
    first = first[np.append(first[1:] != first[:-1], True) & (first < len(filled))]
    return int(np.count_nonzero(text.take(filled[first]) != ord(comment)))


class _Line(NamedTuple):
    """A line of a file that is not blank."""

    path: str
    number: int  # from 1
    text: str

    def error(self, wrong: str) -> FormatError:
        return FormatError(self.path, self.number, wrong, shortened(self.text.rstrip("\n")))


def numbers(
    path: PathLike, start: int, count: int, total: int, between: Callable[[], None] = never
) -> NDArray[np.float32]:
    """The numbers of `count` lines from line `start` on, of `total` lines.

    Lines are counted from 0, without blank ones: `start` is the number of a share's first row, of
    all files end to end. The shape is (count,), or (count, k) where lines hold k > 1 numbers.

    Raises:
        FormatError: a line is not a number, holds more or fewer than the line before, or the file
            has too few lines; or, for the rank that reads the last line, too many.
        OSError: the file cannot be read.
    """
    found = array("d")
    width = 1
    for place, line in enumerate(_filled_lines(path, between)):
        if place >= start + count:
            if start + count == total:
                raise line.error(f"{total} lines are needed, and this is one more; {_WHOSE}")
            break
        if place < start:
            continue
        words = [word.encode() for word in line.text.split()]
        values = [number(word) for word in words]
        wrong = [shown(word) for word, value in zip(words, values, strict=True) if value is None]
        if wrong:
            raise line.error(f"{wrong[0]} is not a number; correct the line")
        if place > start and len(values) != width:
            raise line.error(f"it holds {len(values)} numbers, the line before {width}")
        width = len(values)
        found.extend(value for value in values if value is not None)
    seen = len(found) // width
    if seen < count:
        need = f"rows {start} to {start + count - 1} need one number each"
        raise _too_short(path, f"{need}, and {count - seen} are missing")
    with np.errstate(over="ignore"):
        table = np.frombuffer(found, np.float64).astype(np.float32)
    return table if width == 1 else table.reshape(seen, width)


class Groups(NamedTuple):
    """The meaning of a `.group` file for a share."""

    skip: int  # rows at the share's beginning that belong to a group begun before it
    extra: int  # rows beyond its end of a group begun in it
    group_sizes: NDArray[np.int64]  # of the groups that begin in it, in order


def groups_of_share(
    path: PathLike, start: int, count: int, total: int, between: Callable[[], None] = never
) -> Groups:
    """The groups (sizes, one a line) that begin at the rows [start, start + count) of `total`.

    count - skip + extra == group_sizes.sum(). Groups without rows at the end belong to the share
    with the last row.

    Raises:
        FormatError: a line is not a size, or the groups end before row start + count or continue
            beyond the last row.
        OSError: the file cannot be read.
    """
    last = start < total == start + count
    begin = 0  # the row at which the next group begins
    skip = 0
    found: list[int] = []
    for line in _filled_lines(path, between):
        if begin >= start + count and not last:
            break
        word = line.text.strip()
        if not (word.isascii() and word.isdigit()):
            raise line.error("it is not the size of a group (a whole number); correct the line")
        if begin >= start:
            found.append(int(word))
        begin += int(word)
        if begin > total:
            have = f"the groups up to this one have {begin} rows"
            raise line.error(f"{have}, and the data has {total}; {_WHOSE}")
        if not found:
            skip = min(max(begin - start, 0), count)
    if begin < start + count:
        have = f"its groups have {begin} rows in all"
        raise _too_short(path, f"{have}, and the data has {start + count} or more")
    extra = begin - (start + count) if found else 0
    return Groups(skip, extra, np.array(found, np.int64))


def _filled_lines(path: PathLike, between: Callable[[], None] = never) -> Iterator[_Line]:
    name = os.fspath(path)
    with Path(path).open(encoding="utf-8-sig", errors="backslashreplace") as file:
        for place, text in enumerate(file):
            if place % _PAUSE == 0:
                between()
            if not text.isspace():
                yield _Line(name, place + 1, text)


def _too_short(path: PathLike, wrong: str) -> FormatError:
    """The error for a file that ends too early; its line is the last."""
    with Path(path).open(encoding="utf-8-sig", errors="backslashreplace") as file:
        last = max(sum(1 for _ in file), 1)
    return FormatError(os.fspath(path), last, f"it ends too early: {wrong}; {_WHOSE}", "")
