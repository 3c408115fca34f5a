"""Reads blocks of LibSVM text in which all numbers are whole and short: counts, pixels, categories.

Lines are label, blank, index:value, blank, …, line end, and each number has one to four digits. So
every byte is a digit or a mark that ends a number, no two marks are adjacent, and a number is read
at the mark after it. That takes half the time of reading numbers of any form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.rows import Rows, entries_of

_PAD = 4  # line ends before a block, so that its first digits have a byte before them
_FIRST = 1 << 12  # bytes that are searched for a decimal point


class Short:
    """Reads such blocks. The arrays are made once and used for block after block."""

    def __init__(self) -> None:
        self._bytes = np.empty((4, 0), np.uint8)

    def rows(self, block: NDArray[np.uint8], indexing_mode: int) -> Rows | None:
        """The rows of a block; None for a block of another form."""
        if (block[:_FIRST] == ord(".")).any() or len(block) == 0 or int(block[-1]) not in b"\n\r":
            return None
        size = _PAD + len(block)
        if size > self._bytes.shape[1]:
            self._bytes = np.empty((4, size), np.uint8)
        text, ones, flags, spare = (row[:size] for row in self._bytes)
        text[:_PAD] = ord("\n")
        text[_PAD:] = block
        np.subtract(text, ord("0"), out=ones)  # what is below '0' wraps round to more than 9
        is_digit = np.less_equal(ones, 9, out=flags.view(np.bool_))
        np.multiply(ones, flags, out=ones)
        numbers = _numbers(ones, is_digit, spare)
        if numbers is None:
            return None

        is_mark = np.logical_not(is_digit, out=is_digit)
        if (is_mark[_PAD:] & is_mark[_PAD - 1 : -1]).any():
            return None
        # From the line end before the block on: `marks` counts from there, `ended` is by one less.
        marks = np.flatnonzero(is_mark[_PAD - 1 :])
        found = _structure(text[_PAD - 1 :].take(marks))
        if found is None:
            return None
        heads, of_entry = found
        ended = numbers[_PAD - 2 :].take(marks)
        pairs = ended[of_entry]
        entries = entries_of(pairs[0::2], pairs[1::2])
        if indexing_mode:
            entries["index"] -= indexing_mode
            if entries["index"].min(initial=0) < 0:
                return None
        indptr = np.empty(len(heads) + 1, np.int64)
        np.subtract(heads, np.arange(1, len(heads) + 1), out=indptr[:-1])
        indptr[:-1] >>= 1
        indptr[-1] = len(entries)
        labels = ended.take(heads).astype(np.float32)
        return Rows(entries, indptr, labels, None, None)


def _numbers(
    ones: NDArray[np.uint8], is_digit: NDArray[np.bool_], spare: NDArray[np.uint8]
) -> NDArray[np.uint8] | NDArray[np.uint16] | None:
    """At each digit the number that ends there; None if a number has five digits or more.

    ones: each byte's digit, 0 for other bytes. It is overwritten, and so is spare.
    """
    spare[0] = 0
    np.multiply(ones[:-1], 10, out=spare[1:])
    twos = np.add(ones, spare, out=ones)
    pairs = np.logical_and(is_digit[1:], is_digit[:-1], out=spare[1:].view(np.bool_))
    threes = pairs[1:] & is_digit[:-2]
    if not threes.any():
        return twos
    if (threes[2:] & pairs[:-3]).any():
        return None
    fours = twos.astype(np.uint16)
    hundreds = np.multiply(twos[:-2], threes, dtype=np.uint16)  # NumPy 1 would stay with bytes
    hundreds *= 100
    fours[2:] += hundreds
    return fours


def _structure(marks: NDArray[np.uint8]) -> tuple[NDArray[np.intp], NDArray[np.bool_]] | None:
    """Which of the marks end a label, and whether each ends a part of an entry.

    marks: their characters; the first is the line end before the block. None for other characters,
    or another order.
    """
    is_colon = marks == ord(":")
    is_end = marks == ord("\n")
    known = np.count_nonzero(is_colon) + np.count_nonzero(is_end)
    known += np.count_nonzero(marks == ord(" "))
    if known != len(marks):
        others = marks == ord("\r")
        is_end |= others
        if known + np.count_nonzero(others) + np.count_nonzero(marks == ord("\t")) != len(marks):
            return None
    ends = np.flatnonzero(is_end)
    heads = ends[:-1] + 1
    # Within a line colons alternate with other marks, and a line begins and ends with another mark.
    # So two marks of the same kind are neighbours between lines and nowhere else.
    alike = is_colon[1:] == is_colon[:-1]
    if is_colon[0] or np.count_nonzero(alike) != len(heads) or not alike.take(ends[:-1]).all():
        return None
    of_entry = np.ones(len(marks), np.bool_)
    of_entry[0] = False
    of_entry[heads] = False
    return heads, of_entry
