"""A share whose groups of rows are whole: rows of one qid, or of one group of a `.group` file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.rows import Rows

# The rows of the lines that begin in bytes [start, stop) of all files, read in blocks of some size.
ReadRange = Callable[[int, int, int], Iterator[Rows]]

_LOOK = 1 << 16  # bytes read at a time outside the share
_LOOK_GROWS = 16  # times as far back, when no row was found


def whole_share(
    read: ReadRange, start: int, stop: int, total: int, chunk: int, skip: int, extra: int
) -> Iterator[Rows]:
    """The rows of the range, less those of a group begun before it, and on to the last group's end.

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
        raise ValueError(f"the last group has {extra} rows more than the files: correct its size")


def _qid_before(read: ReadRange, start: int) -> np.uint64 | None:
    """The qid of the last row that begins before a byte; None if there is no such row."""
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
    """How many rows at the beginning have this qid."""
    if qids is None or qid is None:
        return 0
    others = np.flatnonzero(qids != qid)
    return int(others[0]) if len(others) else len(qids)
