"""Reads LibSVM text: label[:weight] [qid:N] index[:value] … [# comment], a row a line.

NumPy reads all lines of a block at once: in `short_numbers` if all numbers are short, else in
`_rows_at_once`. A block with rare or wrong text is read by `line_by_line`, which names the line and
the mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.digits import Bytes, Digits, Places, numbers_at
from shanty.xgboost.text.files import PathLike, read_share
from shanty.xgboost.text.line_by_line import LARGEST_INDEX, Kind, rows_by_line
from shanty.xgboost.text.rows import Rows, entries_of
from shanty.xgboost.text.short_numbers import Short

CHUNK = 1 << 18  # bytes: the arrays for one block stay in the processor's cache
_TRIES = 3  # blocks with other numbers, after which short numbers are no longer tried
_INDEX_DIGITS = 15  # that float64 holds exactly


def read_libsvm(
    files: Sequence[PathLike],
    rank: int,
    ranks: int,
    *,
    indexing_mode: int = 0,
    sizes: Sequence[int] | None = None,
    skip: int = 0,
    extra: int = 0,
    chunk: int = CHUNK,
) -> Iterator[Rows]:
    """Rows of a rank's share, in blocks of about `chunk` bytes of text, if it has any.

    Consecutive rows of one qid stay together: they belong to the share in which they begin.

    Args:
        indexing_mode: 0 takes indices as they are, 1 as counted from 1 (one is taken off).
        sizes: of the files, if they are known (see `measure()`).
        skip: rows to leave out at the share's beginning, from `groups_of_share`; not with qids.
        extra: rows to read beyond its end, likewise.

    Raises:
        FormatError: a line is not a row, or has a weight or qid while others have none.
        OSError: a file cannot be read.
        ValueError: a wrong argument, at once.
    """
    if indexing_mode not in (0, 1):
        raise ValueError(
            f"indexing_mode={indexing_mode}: give 0 (indices as they are) or 1 (counted from 1). "
            "A rank cannot guess it from its share."
        )
    parse = _Parser(indexing_mode)
    return read_share(files, sizes, parse, rank, ranks, chunk, skip, extra)


class _Parser:
    """Makes rows of one block after another, all of one kind."""

    def __init__(self, indexing_mode: int) -> None:
        self._indexing_mode = indexing_mode
        self._short = Short()
        self._tries = _TRIES  # at reading a block as short numbers
        self._digits = Digits()
        self._kind: Kind | None = None

    def __call__(self, text: Bytes) -> Rows | None:
        rows = None
        if self._tries:
            rows = self._short.rows(text, self._indexing_mode)
            self._tries -= rows is None
        if rows is None:
            rows = _rows_at_once(self._digits, text, self._indexing_mode)
        if rows is None or self._kind not in (None, _kind(rows)):
            rows = rows_by_line(text.tobytes(), self._indexing_mode, self._kind)
        if rows is not None:
            self._kind = _kind(rows)
        return rows


def _kind(rows: Rows) -> Kind:
    return Kind(rows.weights is not None, rows.qids is not None)


def _rows_at_once(of: Digits, block: Bytes, indexing_mode: int) -> Rows | None:
    """The rows of a block; None if they are uncertain (see `line_by_line`), or none at all."""
    of.read(_without_comments(block) if (block == ord("#")).any() else block)
    if of.controls:
        return None
    found = _entries(of)
    if found is None:
        return None
    labels = numbers_at(of, *found.labels)
    weights = None if found.weights is None else numbers_at(of, *found.weights)
    indices = _indices(of, found.starts, found.middles, indexing_mode)
    given = found.middles < found.ends
    if given.all():
        values = numbers_at(of, found.middles + 1, found.ends)
    else:
        values = numbers_at(of, found.middles[given] + 1, found.ends[given])
        if values is not None:
            values, some = np.ones(len(given), np.float32), values
            values[given] = some
    if labels is None or values is None or indices is None:
        return None
    if weights is None and found.weights is not None:
        return None
    return Rows(entries_of(indices, values), found.indptr, labels, weights, found.qids)


class _Entries(NamedTuple):
    """Places of the numbers in a block's text; an entry is start … middle (a colon) … end."""

    labels: tuple[Places, Places]  # starts and ends
    weights: tuple[Places, Places] | None
    qids: NDArray[np.uint64] | None
    indptr: Places
    starts: Places
    middles: Places  # of the colons; the end of an entry without a colon
    ends: Places


def _entries(of: Digits) -> _Entries | None:
    """Finds the entries of all lines; None for a block without lines.

    Also None if a word has two colons, or if some lines only have weights or qids.
    """
    blank = of.blanks()
    edges = np.flatnonzero(blank[1:] != blank[:-1]) + 1
    if len(edges) == 0:
        return None
    starts, ends = edges[0::2].copy(), edges[1::2].copy()
    heads = starts.searchsorted(of.line_ends()[:-1])  # of each line the first word
    heads = heads[np.append(heads[1:] != heads[:-1], True) & (heads < len(starts))]
    is_entry = np.ones(len(starts), np.bool_)
    is_entry[heads] = False
    qids = None
    if of.has("q"):
        qids = _qids(of, starts, ends, heads)
        if qids is None:
            return None
        is_entry[heads + 1] = False
    colons = of.places(":")
    entry_starts, entry_ends = starts[is_entry], ends[is_entry]
    label_starts, label_ends = starts[heads], ends[heads]
    weights = None
    if _one_in_each(colons, entry_starts, entry_ends):
        entry_middles = colons
    else:
        middles = _middles(starts, ends, colons)
        if middles is None:
            return None
        entry_middles, label_middles = middles[is_entry], middles[heads]
        weighted = label_middles < label_ends
        if weighted.any():
            if not weighted.all():
                return None
            weights, label_ends = (label_middles + 1, label_ends), label_middles
    indptr = np.empty(len(heads) + 1, np.int64)
    np.subtract(heads, np.arange(len(heads)) * (1 if qids is None else 2), out=indptr[:-1])
    indptr[-1] = len(entry_starts)
    return _Entries(
        (label_starts, label_ends), weights, qids, indptr, entry_starts, entry_middles, entry_ends
    )


def _without_comments(block: Bytes) -> Bytes:
    """The block without what is from '#' to the end of a line."""
    marks = np.flatnonzero(block == ord("#"))
    ends = np.flatnonzero((block == ord("\n")) | (block == ord("\r")))
    lines = ends.searchsorted(marks)
    first = np.append(True, lines[1:] != lines[:-1])  # '#' of its line
    resumed = np.append(ends, len(block))[lines[first]].tolist()
    text = block.tobytes()
    kept = zip([0, *resumed], [*marks[first].tolist(), len(text)], strict=True)
    return np.frombuffer(b"".join([text[start:stop] for start, stop in kept]), np.uint8)


def _qids(of: Digits, starts: Places, ends: Places, heads: Places) -> NDArray[np.uint64] | None:
    """The qids, one in each line right after the label; None if any line differs from that.

    The colons of the qids are overwritten in the text.
    """
    seconds = heads + 1
    if seconds[-1] >= len(starts) or (seconds[:-1] >= heads[1:]).any():
        return None
    begin, end = starts[seconds], ends[seconds]
    for place, character in enumerate("qid:"):
        if (of.text.take(begin + place) != ord(character)).any():
            return None
    lengths = end - begin - 4
    if lengths.min() < 1 or lengths.max() > _INDEX_DIGITS:
        return None
    if len(of.places("q")) != len(heads) or (of.runs.take(end - 1) != lengths).any():
        return None
    of.text[begin + 3] = ord("q")
    return of.whole(end - 1, lengths.astype(np.uint8)).astype(np.uint64)


def _one_in_each(places: Places, starts: Places, ends: Places) -> bool:
    """Returns whether each word contains exactly one of the places, and no others exist."""
    return bool(len(places) == len(starts) and ((starts < places) & (places < ends)).all())


def _middles(starts: Places, ends: Places, colons: Places) -> Places | None:
    """Each word's colon, or its end if it has no colon; None if a word has two."""
    words = starts.searchsorted(colons, side="right") - 1
    if (words[1:] == words[:-1]).any():
        return None
    middles = ends.copy()
    middles[words] = colons
    return middles


def _indices(
    of: Digits, starts: Places, ends: Places, indexing_mode: int
) -> NDArray[np.int32] | None:
    """The whole numbers at text[start:end], from 0; None if one is not an index."""
    short = of.short(starts, ends)
    if short is not None:
        found = short.astype(np.int32)
        if indexing_mode:
            found -= indexing_mode
        return None if indexing_mode and found.min(initial=0) < 0 else found
    last = ends - 1
    runs = of.runs.take(last)
    if (runs != ends - starts).any() or runs.min() < 1 or runs.max() > _INDEX_DIGITS:
        return None
    numbers = of.whole(last, runs) - indexing_mode
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) > LARGEST_INDEX:
        return None
    return numbers.astype(np.int32)
