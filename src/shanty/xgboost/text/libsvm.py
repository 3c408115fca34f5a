"""Reads LibSVM text: label[:weight] [qid:N] index[:value] … [# comment], a row a line.

A block's lines are read all at once with NumPy, by `short` where that can be, else by
`_rows_at_once`; a block with something rare or wrong in it goes through `byline`, which finds the
line and says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.byline import LARGEST_INDEX, Kind, rows_by_line
from shanty.xgboost.text.digits import PAD, Bytes, Digits, Places, numbers_at
from shanty.xgboost.text.files import Lines, PathLike, read_share
from shanty.xgboost.text.rows import Rows
from shanty.xgboost.text.short import Short

CHUNK = 1 << 18  # bytes: the arrays for one block stay in the processor's cache
_TRIES = 3  # blocks that are no short numbers before that is not tried any more
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

    Rows of one qid that follow each other stay together: they are the rank's where they begin.

    Args:
        indexing_mode: 0 takes indices as they are, 1 as counted from 1 (one is taken off).
        sizes: of the files, if known already (see `sizes()`).
        skip: rows left out at the share's beginning, as `groups_of_share` tells; not with qids.
        extra: rows read on beyond its end, likewise.

    Raises:
        FormatError: a line is no row, or has a weight or qid where others have none.
        OSError: a file cannot be read.
        ValueError: a wrong argument, at once.
    """
    if indexing_mode not in (0, 1):
        raise ValueError(
            f"indexing_mode={indexing_mode}: 0 (indices as they are) or 1 (counted from 1); "
            "guessing it (below 0) differs from rank to rank and is not done"
        )
    parse = _Parser(indexing_mode)
    return read_share(Lines(files, sizes), parse, rank, ranks, chunk, skip, extra)


class _Parser:
    """Makes rows of block after block, all of one kind."""

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
    """The rows of a block; None where that is not for sure (see `byline`), or there are none."""
    of.read(_without_comments(block) if (block == ord("#")).any() else block)
    if of.controls:
        return None
    found = _plain_entries(of) or _entries(of)
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
    return Rows(values, indices, found.indptr, labels, weights, found.qids)


class _Entries(NamedTuple):
    """Places of the numbers in a block's text; an entry is start … middle (a colon) … end."""

    labels: tuple[Places, Places]  # starts and ends
    weights: tuple[Places, Places] | None
    qids: NDArray[np.uint64] | None
    indptr: Places
    starts: Places
    middles: Places  # of the colons; where there is none, the end
    ends: Places


def _plain_entries(of: Digits) -> _Entries | None:
    """Entries of lines that are label, blank, index:value, blank, …, line end; None if one is not.

    Between line ends there are then, in turn, a blank after the label, and a colon and a blank (or
    line end) for every entry.
    """
    if of.has("q"):
        return None
    colon = of.text == ord(":")
    mark = of.blanks() | colon
    if (mark[PAD:] & mark[PAD - 1 : -1]).any():
        return None
    marks = np.flatnonzero(mark)[PAD - 1 :]
    line_ends = of.line_ends()
    label_ends_at = marks.searchsorted(line_ends[:-1]) + 1
    of_entry = np.ones(len(marks), np.bool_)
    of_entry[0] = False
    of_entry[label_ends_at] = False
    pairs = marks[of_entry]
    colons, ends = pairs[0::2].copy(), pairs[1::2].copy()
    if len(colons) != len(ends) or np.count_nonzero(colon) != len(colons):
        return None
    if not colon.take(colons).all():
        return None
    label_ends = marks[label_ends_at]
    indptr = np.empty(len(label_ends) + 1, np.int64)
    np.subtract(label_ends_at, np.arange(1, len(label_ends) + 1), out=indptr[:-1])
    indptr[:-1] >>= 1
    indptr[-1] = len(colons)
    labels = line_ends[:-1] + 1, label_ends
    # An entry begins after the one before it ends, a line's first one after the label.
    filled = indptr[:-1] < indptr[1:]
    starts = np.empty(len(ends), np.int64)
    np.add(ends[:-1], 1, out=starts[1:])
    starts[indptr[:-1][filled]] = label_ends[filled] + 1
    return _Entries(labels, None, None, indptr, starts, colons, ends)


def _entries(of: Digits) -> _Entries | None:
    """Finds the entries of all lines; None if there are no lines.

    None, too, where a word has two colons, or weights or qids are not in all lines.
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
    """The qids, one in each line right after the label; None if it is not so.

    Their letters and colons are taken out of the text.
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
    """Tells whether each word has one of the places within it, and there are no others."""
    return bool(len(places) == len(starts) and ((starts < places) & (places < ends)).all())


def _middles(starts: Places, ends: Places, colons: Places) -> Places | None:
    """Each word's colon, its end where it has none; None if a word has two."""
    words = starts.searchsorted(colons, side="right") - 1
    if (words[1:] == words[:-1]).any():
        return None
    middles = ends.copy()
    middles[words] = colons
    return middles


def _indices(
    of: Digits, starts: Places, ends: Places, indexing_mode: int
) -> NDArray[np.int32] | None:
    """The whole numbers at text[start:end], from 0; None if one is no index."""
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
