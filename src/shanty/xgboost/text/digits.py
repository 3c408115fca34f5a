"""Reads decimal numbers in a block of text, all of them at once.

For every byte of the block two values are computed by operations on whole arrays: how many digits
end there (`runs`), and the number that the last four of them form (`fours`). Both double their
reach at each step (one digit, two, four, …), in arrays of one or two bytes an element, which costs
a few hundredths of a nanosecond a byte. A number is then read at its last byte.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.line_by_line import number

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

PAD = 32  # line ends put before a block, so that what is looked up before a token exists
LONGEST_RUN = 32  # digits; a run that is as long or longer counts as this
_KEPT = 1 << 24  # bytes up to which the pages of a freed array are kept for the next
_MOST_EXPONENT_DIGITS = 2  # float32 ends at 38

# Of ten: as many as a byte can name.
POWERS = 10.0 ** np.arange(256)


class Digits:
    """A block of text and its digits. The arrays are made once and used for block after block.

    Attributes, each with one element for each byte, until the next read():
        text: PAD line ends, the block, a line end if it has none at its end.
        runs: how many digits end here: 0 where there is none, at most LONGEST_RUN.
        fours: the number that the last four (or fewer) of these digits are.
        signs, dots: whether '+' or '-', and '.', occur anywhere.
        controls: whether a control character occurs other than blanks and line ends.
        returns: the number of carriage returns.
    """

    text: Bytes
    runs: Bytes
    fours: NDArray[np.uint16]
    signs: bool
    dots: bool
    controls: bool
    returns: int

    def __init__(self) -> None:
        # glibc returns the pages of a large freed array to the kernel, and gets and clears new
        # pages for the next array, which would cost as much as all reading here. It keeps the pages
        # of arrays up to a size that has been freed once (mallopt(3), M_MMAP_THRESHOLD). This array
        # touches none of its pages.
        np.empty(_KEPT, np.uint8)
        self._grow(0)

    def _grow(self, size: int) -> None:
        self._bytes = np.empty((5, size), np.uint8)
        self._fours = np.empty(size, np.uint16)

    def read(self, block: Bytes) -> None:
        """Takes `block`, which is copied."""
        ended = len(block) > 0 and block[-1] in b"\n\r"
        size = PAD + len(block) + (not ended)
        if size > len(self._fours):
            self._grow(size)
        text, ones, twos, runs, spare = (row[:size] for row in self._bytes)
        fours = self._fours[:size]
        text[:PAD] = text[-1] = ord("\n")
        text[PAD : PAD + len(block)] = block

        np.subtract(text, ord("0"), out=ones)  # what is below '0' wraps round to more than 9
        np.less_equal(ones, 9, out=runs.view(np.bool_))
        np.multiply(ones, runs, out=ones)
        spare[0] = 0
        np.multiply(ones[:-1], 10, out=spare[1:])
        np.add(ones, spare, out=twos)
        np.multiply(twos, runs, out=twos)
        # Now runs is 1 at every digit, spare 1 at every digit after a digit.
        np.multiply(runs[1:], runs[:-1], out=spare[1:])
        np.add(runs, spare, out=runs)
        np.multiply(twos[:-2], spare[2:], out=ones[2:])
        np.copyto(fours, ones)
        np.multiply(fours, 100, out=fours)
        np.add(fours, twos, out=fours)
        np.multiply(runs[:-2], spare[2:], out=ones[2:])
        np.add(runs[2:], ones[2:], out=runs[2:])
        for reach in (4, 8, 16):
            full = np.equal(runs, reach, out=spare.view(np.bool_))
            if not full.any():
                break
            np.multiply(runs[:-reach], spare[reach:], out=ones[reach:])
            np.add(runs[reach:], ones[reach:], out=runs[reach:])

        self.text, self.runs, self.fours = text, runs, fours
        self.signs = self.has("-") or self.has("+")
        self.dots = self.has(".")
        controls = np.count_nonzero(np.less(text, ord(" "), out=self._mask()))
        controls -= np.count_nonzero(self._is("\n"))
        self.returns = int(np.count_nonzero(self._is("\r"))) if controls else 0
        if controls > self.returns:
            controls -= np.count_nonzero(self._is("\t"))
        self.controls = bool(controls > self.returns)

    def has(self, character: str) -> bool:
        """Looks for the character anywhere in the block."""
        return bool(self._is(character).any())

    def places(self, character: str) -> Places:
        """The places of the character."""
        return np.flatnonzero(self._is(character))

    def blanks(self) -> NDArray[np.bool_]:
        """Marks the bytes that are blanks or line ends; good until the next question."""
        return np.less_equal(self.text, ord(" "), out=self._mask())

    def line_ends(self) -> Places:
        """The ends of lines: the one before the block, and the one after it, among them."""
        ends = self._is("\n")
        if self.returns:
            ends |= self.text == ord("\r")
        return np.flatnonzero(ends[PAD - 1 :]) + (PAD - 1)

    def _is(self, character: str) -> NDArray[np.bool_]:
        """Marks the bytes that are the character; good until the next question."""
        return np.equal(self.text, ord(character), out=self._mask())

    def _mask(self) -> NDArray[np.bool_]:
        return self._bytes[4, : len(self.text)].view(np.bool_)

    def whole(self, last: Places, runs: Bytes) -> NDArray[np.float64]:
        """The numbers of `runs` digits whose last is at `last`; 0 for no digits.

        Exact below 2^53, else to some units in the last binary place.
        """
        longest = int(runs.max(initial=0))
        found = self.fours.take(last).astype(np.float64)
        for beyond in range(4, longest, 4):
            more = self.fours.take(last - beyond)
            more *= runs > beyond
            found += more * 10.0**beyond
        return found

    def short(self, starts: Places, ends: Places) -> NDArray[np.uint16] | None:
        """The numbers text[start:end], if each is nothing but one to four digits; else None."""
        last = ends - 1
        runs = self.runs.take(last)
        if runs.max(initial=0) > 4 or runs.min(initial=1) < 1 or (runs != ends - starts).any():
            return None
        return self.fours.take(last)

    def decimals(
        self, starts: Places, ends: Places
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The numbers [sign] digits [. digits] at text[start:end], and which have that form.

        For other text (an exponent, nan, 32 or more digits in a row, nothing at all) the second is
        False and the first has no meaning.
        """
        negative = None
        if self.signs:
            first = self.text.take(starts)
            negative = first == ord("-")
            starts = starts + (negative | (first == ord("+")))
        last = ends - 1
        tails = self.runs.take(last)
        lengths = ends - starts
        found = self.whole(last, tails)
        good = tails == lengths
        if self.dots:
            points = last - tails  # where the point is, when there is one
            fraction = self.text.take(points) == ord(".")
            points -= 1
            leads = self.runs.take(points)
            if fraction.all():
                found /= POWERS.take(tails)
                found += self.whole(points, leads)
            else:
                leads *= fraction
                found /= POWERS.take(tails * fraction)
                found += self.whole(points, leads) * fraction
            leads += tails
            good |= fraction & (leads + np.int64(1) == lengths)
            good &= leads > 0
        else:
            good &= tails > 0
        good &= tails < LONGEST_RUN
        if negative is not None:  # flips the sign's bit
            bits = found.view(np.uint64)
            bits ^= negative.astype(np.uint64) << np.uint64(63)
        return found, good


def numbers_at(of: Digits, starts: Places, ends: Places) -> NDArray[np.float32] | None:
    """The numbers at text[start:end], of any form; None if one is not a number."""
    short = None if of.dots else of.short(starts, ends)
    if short is not None:
        return short.astype(np.float32)
    found, good = of.decimals(starts, ends)
    if not good.all():
        odd = np.flatnonzero(~good)
        values, good = _with_exponent(of, starts[odd], ends[odd])
        found[odd] = values
        for place in odd[~good]:
            value = number(of.text[starts[place] : ends[place]].tobytes())
            if value is None:
                return None
            found[place] = value
    with np.errstate(over="ignore"):
        return found.astype(np.float32)


def _with_exponent(
    of: Digits, starts: Places, ends: Places
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of the form decimal e [sign] digits, and which of them have that form."""
    last = ends - 1
    runs = of.runs.take(last)
    signs = of.text.take(last - runs)
    negative = signs == ord("-")
    marks = last - runs - (negative | (signs == ord("+")))
    found, good = of.decimals(starts, marks)
    good &= (of.text.take(marks) | np.uint8(32)) == ord("e")
    good &= (runs > 0) & (runs <= _MOST_EXPONENT_DIGITS)
    powers = POWERS.take(of.whole(last, runs * good).astype(np.int64) * good)
    return np.where(negative, found / powers, found * powers), good
