"""Rows as the readers give them, whole groups of them, and the error for any other line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ENTRY = np.dtype([("index", "<i4"), ("value", "<f4")])
_LOOK = 1 << 16  # bytes read at a time outside the share
_LOOK_GROWS = 16  # times as far back, when no row was found


class Rows(NamedTuple):
    """One or more rows, in the order of the file. The caller may keep the arrays.

    LibSVM: compressed sparse rows; `data` has the entries, as ENTRY, and `indptr` begins with 0 and
    has one element more than there are rows. CSV: dense, `data` is float32 of shape (rows,
    columns), NaN where a field is empty; no `indptr`. All Rows of one share agree in having weights
    and qids or not.
    """

    data: NDArray[Any]
    indptr: NDArray[np.int64] | None
    labels: NDArray[np.float32] | None  # None: CSV without a label column
    weights: NDArray[np.float32] | None
    qids: NDArray[np.uint64] | None

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.data) if self.indptr is None else len(self.indptr) - 1

    def part(self, start: int, stop: int) -> Rows:
        """Rows start … stop - 1, as views where that can be."""
        if self.indptr is None:
            data, indptr = self.data[start:stop], None
        else:
            first, last = self.indptr[start], self.indptr[stop]
            data, indptr = self.data[first:last], self.indptr[start : stop + 1] - first
        return Rows(
            data,
            indptr,
            None if self.labels is None else self.labels[start:stop],
            None if self.weights is None else self.weights[start:stop],
            None if self.qids is None else self.qids[start:stop],
        )


def entries_of(indices: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Indices and values side by side, as ENTRY."""
    found = np.empty(len(values), ENTRY)
    found["index"], found["value"] = indices, values
    return found


class FormatError(ValueError):
    """A line of a data file that cannot be read. It can be pickled; str() has all of it.

    Attributes:
        path: the file.
        line: number of the line in it, from 1.
        wrong: what is wrong and what to do.
        text: the line, shortened.
    """

    def __init__(self, path: str, line: int, wrong: str, text: str) -> None:
        super().__init__(path, line, wrong, text)
        self.path, self.line, self.wrong, self.text = path, line, wrong, text

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.wrong}. The line: {self.text!r}"


class Malformed(Exception):  # noqa: N818 - it does not leave this package
    """A line of a block that cannot be read: where it begins in the block, and what is wrong."""

    def __init__(self, start: int, wrong: str) -> None:
        super().__init__(start, wrong)
        self.start, self.wrong = start, wrong


def overlaps(sizes: Iterable[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The parts, of these sizes and end to end, of which something is in [start, stop).

    Yields the number of the part, and first and end of what is in the range, counted in the part.
    """
    at = 0
    for number, size in enumerate(sizes):
        first, end = max(start - at, 0), min(stop - at, size)
        if first < end:
            yield number, first, end
        at += size


# Reads the rows of the lines that begin in bytes [start, stop), in blocks of some size.
ReadRange = Callable[[int, int, int], Iterator[Rows]]


def whole_share(
    read: ReadRange, start: int, stop: int, total: int, chunk: int, skip: int, extra: int
) -> Iterator[Rows]:
    """Yields a range's rows without a group begun before it, up to the end of the last group.

    A group is the rows of one qid, or of one size in a `.group` file.

    Args:
        total: bytes of all files.
        skip, extra: rows less at the beginning and more at the end, where groups have no qid.
    """
    before: np.uint64 | None = None
    current: np.uint64 | None = None
    looked = kept = False
    for part in read(start, stop, chunk):
        gone = min(skip, part.size)
        skip -= gone
        if part.qids is not None and not kept:
            if not looked:
                before, looked = _qid_before(read, start), True
            gone = max(gone, _leading(part.qids, before))
        if gone == part.size:
            continue
        kept = True
        current = None if part.qids is None else part.qids[-1]
        yield part if gone == 0 else part.part(gone, part.size)
    for part in read(stop, total, _LOOK) if extra or current is not None else ():
        more = min(extra, part.size) if current is None else _leading(part.qids, current)
        if more:
            yield part.part(0, more)
        extra = max(extra - more, 0)
        if more < part.size or (current is None and extra == 0):
            break
    if extra:
        raise ValueError(f"the last group has {extra} more rows than the files: correct its size")


def _qid_before(read: ReadRange, start: int) -> np.uint64 | None:
    """The qid of the last row that begins before a byte; None if no row does."""
    reach = _LOOK
    while True:
        first = max(start - reach, 0)
        found: np.uint64 | None = None
        for part in read(first, start, _LOOK):
            found = None if part.qids is None else part.qids[-1]
        if found is not None or first == 0:
            return found
        reach *= _LOOK_GROWS


def _leading(qids: NDArray[np.uint64] | None, qid: np.uint64 | None) -> int:
    """Number of rows at the beginning that have this qid."""
    if qids is None or qid is None:
        return 0
    others = np.flatnonzero(qids != qid)
    return int(others[0]) if len(others) else len(qids)
