"""Groups of a ranking that stay whole where rows are shared out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text import Rows

T = TypeVar("T", bound=np.generic)


def whole_groups(pieces: Iterable[Rows], wanted: int, started: bool) -> Iterator[Rows]:
    """Of rows with a qid, those of the groups that begin within a share.

    wanted: rows of the share. started: `pieces` begins one row before it, since it is not the
    first one. They go on behind it for as long as they are asked for.
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
            yield cut(piece, first, stop)
        if stop < len(qids):
            return
        position += len(qids)


def cut(rows: Rows, first: int, stop: int) -> Rows:
    """Some of the rows."""

    def some(values: NDArray[T] | None) -> NDArray[T] | None:
        return None if values is None else values[first:stop]

    meta = some(rows.labels), some(rows.weights), some(rows.qids)
    if rows.indptr is None or rows.indices is None:
        return Rows(rows.data[first:stop], None, None, *meta)
    begin, end = int(rows.indptr[first]), int(rows.indptr[stop])
    starts = rows.indptr[first : stop + 1] - begin
    return Rows(rows.data[begin:end], rows.indices[begin:end], starts, *meta)
