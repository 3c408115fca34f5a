"""Files beside the data: one line for each row (`.weight`, `.base_margin`) or group (`.group`)."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.byline import number, shown
from shanty.xgboost.text.files import PathLike, never, source
from shanty.xgboost.text.rows import FormatError, Malformed
from shanty.xgboost.text.shares import Lines, format_error, line_number

_CHUNK = 1 << 18  # bytes
_WHOSE = "does the file belong to this data"


def count_rows(
    files: Sequence[PathLike],
    rank: int,
    ranks: int,
    *,
    comment: str | None = "#",
    sizes: Sequence[int] | None = None,
    between: Callable[[], None] = never,
) -> int:
    """How many rows begin in a rank's share, before groups are made whole.

    Lines that are empty, or blank up to a comment, are none; they are not looked at further.

    Args:
        comment: what begins one; None: nothing does (CSV, where a line of blanks is a row, too).
        sizes: of the files, if known already (see `sizes()`).
        between: is called between two pieces of the work, and may raise; so below.
    """
    lines = Lines(files, sizes)
    start, stop = lines.share(rank, ranks)
    count = 0
    for block in lines.blocks(start, stop, _CHUNK):
        count += _rows_in(block.text, comment)
        between()
    return count


def _rows_in(text: NDArray[np.uint8], comment: str | None) -> int:
    """Lines that are not empty; with a comment's beginning, those that are not blank before it."""
    ends = (text == ord("\n")) | (text == ord("\r"))
    if comment is None:
        begins = np.append(True, ends[:-1])
        return int(np.count_nonzero(begins & ~ends))
    first = _first_filled(text, ends)
    return int(np.count_nonzero(text.take(first) != ord(comment)))


def _first_filled(text: NDArray[np.uint8], ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each line that is not blank, the place of the first character that is no blank."""
    filled = np.flatnonzero(text > ord(" "))
    first = filled.searchsorted(np.append(-1, np.flatnonzero(ends)))
    return filled[first[np.append(first[1:] != first[:-1], True) & (first < len(filled))]]


def numbers(
    path: PathLike, start: int, count: int, total: int, between: Callable[[], None] = never
) -> NDArray[np.float32]:
    """The numbers of `count` lines from line `start` on, of `total` lines.

    Lines are counted from 0, without blank ones: `start` is the number of a share's first row, of
    all files end to end. The shape is (count,), or (count, k) where lines hold k > 1 numbers.

    Raises:
        FormatError: a line is no number, holds more or fewer than the one before, or there are not
            enough lines; or, for who reads the last of them, more.
        OSError: the file cannot be read.
    """
    found = array("d")
    seen, width = 0, 1
    for place, words in _filled_lines(path, start, between):
        if seen == count:
            if start + count == total:
                raise _error(
                    path, place, f"{total} lines are needed, and this is one more; {_WHOSE}"
                )
            break
        values = [number(word) for word in words]
        wrong = [shown(word) for word, value in zip(words, values, strict=True) if value is None]
        if wrong:
            raise _error(path, place, f"{wrong[0]} is no number; correct the line")
        if seen and len(values) != width:
            raise _error(path, place, f"it holds {len(values)} numbers, the one before {width}")
        width = len(values)
        found.extend(value for value in values if value is not None)
        seen += 1
    if seen < count:
        need = f"rows {start} to {start + count - 1} need one number each"
        raise _too_short(path, f"{need}, and {count - seen} are missing")
    with np.errstate(over="ignore"):
        table = np.frombuffer(found, np.float64).astype(np.float32)
    return table if width == 1 else table.reshape(seen, width)


class Groups(NamedTuple):
    """What a `.group` file means for a share."""

    skip: int  # rows at the share's beginning that belong to a group begun before it
    extra: int  # rows beyond its end of a group begun in it
    group_sizes: NDArray[np.int64]  # of the groups that begin in it, in order


def groups_of_share(
    path: PathLike, start: int, count: int, total: int, between: Callable[[], None] = never
) -> Groups:
    """The groups (sizes, one a line) that begin at the rows [start, start + count) of `total`.

    With skip, extra, rows and sizes agree: count - skip + extra == group_sizes.sum(). Groups of no
    row at the end belong to who has the last row.

    Raises:
        FormatError: a line is no size, the groups end before row start + count, or go on beyond
            the last.
        OSError: the file cannot be read.
    """
    last = start < total == start + count
    begin = 0  # the row at which the next group begins
    skip = 0
    found: list[int] = []
    for place, words in _filled_lines(path, 0, between):
        if begin >= start + count and not last:
            break
        if len(words) != 1 or not words[0].isdigit():
            raise _error(path, place, "it is no size of a group (a whole number); correct the line")
        if begin >= start:
            found.append(int(words[0]))
        begin += int(words[0])
        if begin > total:
            have = f"the groups up to this one have {begin} rows"
            raise _error(path, place, f"{have}, and the data has {total}; {_WHOSE}")
        if not found:
            skip = min(max(begin - start, 0), count)
    if begin < start + count:
        have = f"its groups have {begin} rows in all"
        raise _too_short(path, f"{have}, and the data has {start + count} or more")
    extra = begin - (start + count) if found else 0
    return Groups(skip, extra, np.array(found, np.int64))


def _filled_lines(
    path: PathLike, skip: int, between: Callable[[], None]
) -> Iterator[tuple[int, list[bytes]]]:
    """Place in the file and words of every line that is not blank, but the first `skip` of them."""
    lines = Lines([path])
    for block in lines.blocks(0, lines.total, _CHUNK):
        between()
        ends = (block.text == ord("\n")) | (block.text == ord("\r"))
        here = len(_first_filled(block.text, ends))
        if here <= skip:
            skip -= here
            continue
        at = block.start
        for line in block.text.tobytes().replace(b"\r", b"\n").split(b"\n"):
            words = line.split()
            if words and skip == 0:
                yield at, words
            elif words:
                skip -= 1
            at += len(line) + 1


def _error(path: PathLike, place: int, wrong: str) -> FormatError:
    """The error for the line that begins at a byte of the file."""
    block = next(Lines([path]).blocks(place, place + 1, _CHUNK))
    return format_error(block, Malformed(0, wrong))


def _too_short(path: PathLike, wrong: str) -> FormatError:
    """The error for a file that ends too early; its line is the last."""
    name = os.fspath(path)
    total = Lines([path]).total
    last = bytearray(1)
    with source(name) as opened:
        opened.read_at(max(total - 1, 0), memoryview(last))
    line = line_number(name, total) - (total > 0 and last in b"\r\n")
    return FormatError(name, line, f"it ends too early: {wrong}; {_WHOSE}", "")
