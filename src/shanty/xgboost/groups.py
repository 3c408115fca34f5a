"""Keeps groups of a ranking whole where rows are shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.errors import DataError
from shanty.xgboost.text.rows import Rows


def share_of(
    read: Callable[[int, int], Iterator[Rows]], rows: int, grouped: bool, rank: int, ranks: int
) -> Iterator[Rows]:
    """One of `ranks` equal parts of the rows that `read(start, stop)` yields; groups stay whole."""
    start, stop = rank * rows // ranks, (rank + 1) * rows // ranks
    if not grouped:
        return read(start, stop)
    begun = start > 0
    return whole_groups(read(start - begun, rows), stop - start, begun)


def whole_groups(pieces: Iterable[Rows], wanted: int, started: bool) -> Iterator[Rows]:
    """Yields the rows of the groups that begin within a share. The rows have a qid.

    wanted: the number of rows in the share. started: `pieces` begins one row before the share,
    because this is not the first share. `pieces` continues after the share as long as it is read.
    """
    if wanted <= 0:
        return
    position = -1 if started else 0  # of a piece's first row, counted from the share's first
    skipping, before, last = started, None, None
    for piece in pieces:
        qids = piece.qids
        assert qids is not None
        first, stop = 0, len(qids)
        if skipping:
            before = qids[0] if before is None else before
            others = np.flatnonzero(qids != before)
            first, skipping = (int(others[0]), False) if len(others) else (stop, True)
            if position + first >= wanted:
                return  # the share lies within a group that began before it
        beyond = max(wanted - position, 0)
        if beyond < stop:
            if beyond > 0:
                last = qids[beyond - 1]
            others = np.flatnonzero(qids[beyond:] != last)
            stop = beyond + int(others[0]) if len(others) else stop
        elif stop:
            last = qids[stop - 1]
        if stop > first:
            yield piece.part(first, stop)
        if stop < len(qids):
            return
        position += len(qids)


def sizes(qids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Counts the rows of one qid that follow each other, group by group.

    XGBoost gets the sizes, not the ids: it keeps 32 bits of an id, and requires ids that rise.
    """
    cuts = np.flatnonzero(qids[1:] != qids[:-1]) + 1
    return np.diff(cuts, prepend=0, append=len(qids)) if len(qids) else cuts


def ids(qids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The qid of each group, in the order of the rows."""
    return qids[np.append(True, qids[1:] != qids[:-1])] if len(qids) else qids


def refuse_twice(groups: NDArray[np.uint64], where: str) -> None:
    """DataError if one of these ids, each of a group of consecutive rows, occurs twice."""
    ordered = np.sort(groups)
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        raise DataError(
            f"{where}: qid {ordered[again[0]]} comes back after rows of another one. Rows of one "
            "qid must be consecutive: sort the rows by qid."
        )


def overlap(spans: Iterable[tuple[int, int] | None]) -> bool:
    """Returns whether ranges (lowest, highest) overlap, so that several may have the same id."""
    there = sorted(span for span in spans if span is not None)
    return any(after[0] <= before[1] for before, after in pairwise(there))
