"""Which lines of which files are whose, and reading them in blocks.

The files, end to end, are N bytes in a row; rank r of n has the bytes [r · N / n, (r + 1) · N / n)
and with them all lines that begin there. A line ends with \\n, \\r\\n or \\r.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.files import PathLike, Source, source
from shanty.xgboost.text.files import sizes as sizes_of
from shanty.xgboost.text.rows import FormatError, Malformed

_BEYOND = 4096  # bytes read at a time to find where the last line ends
_LOOK = 1 << 16  # bytes read at a time where the whole file is gone through
_SHOWN = 120  # characters of a line in a message
_MARK = b"\xef\xbb\xbf"  # of UTF-8, at the beginning of some files


class Piece(NamedTuple):
    """Bytes [start, stop) of a file; its lines are those that begin there."""

    path: str
    start: int
    stop: int


class Block(NamedTuple):
    """Whole lines of a file. `text` is good until the next block is asked for."""

    path: str
    start: int  # of the text in the file
    text: NDArray[np.uint8]


class Lines:
    """The lines of several files, by the place of their beginnings in all files end to end.

    Attributes:
        total: bytes of all files.
    """

    def __init__(self, files: Sequence[PathLike], sizes: Sequence[int] | None = None) -> None:
        self._files = [os.fspath(each) for each in files]
        self._sizes = sizes_of(files) if sizes is None else list(sizes)
        if len(self._sizes) != len(self._files):
            raise ValueError(f"{len(self._files)} files, {len(self._sizes)} sizes")
        self.total = sum(self._sizes)

    def share(self, rank: int, ranks: int) -> tuple[int, int]:
        """First byte and end of a rank's range."""
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks}: ranks count from 0")
        return self.total * rank // ranks, self.total * (rank + 1) // ranks

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The range as parts of files; none of them is empty."""
        found = []
        begin = 0
        for path, size in zip(self._files, self._sizes, strict=True):
            first, last = max(start - begin, 0), min(stop - begin, size)
            if first < last:
                found.append(Piece(path, first, last))
            begin += size
        return found

    def blocks(self, start: int, stop: int, chunk: int) -> Iterator[Block]:
        """The lines that begin in the range, in blocks of about `chunk` bytes, or a line."""
        for piece in self.pieces(start, stop):
            with source(piece.path) as opened:
                yield from _blocks(opened, piece, chunk)


def line_number(path: str, place: int) -> int:
    """Number (from 1) of the line that begins at a byte of a file; all before it is read."""
    ends = 0
    before = b""
    with source(path) as opened:
        buffer = bytearray(_LOOK)
        for at in range(0, place, _LOOK):
            got = opened.read_at(at, memoryview(buffer)[: min(_LOOK, place - at)])
            text = bytes(buffer[:got])
            ends += text.count(b"\n") + text.count(b"\r") - (before + text).count(b"\r\n")
            before = text[-1:]
    return ends + 1


def _blocks(opened: Source, piece: Piece, chunk: int) -> Iterator[Block]:
    """The blocks of one piece; `buffer` holds the file's bytes from `at` on, `held` of them."""
    buffer = bytearray(chunk)
    held = 0
    # The line that the byte before belongs to began before the piece, unless that byte ends it.
    at = max(piece.start - 1, 0)
    inside = piece.start > 0
    while at < piece.stop:
        if held == len(buffer):
            buffer = buffer + bytes(len(buffer))  # not in place: a reader may still look at it
        left = piece.stop - (at + held)
        limit = held + (left if left > 0 else _BEYOND)
        view = memoryview(buffer)[held:limit]
        got = opened.read_at(at + held, view)
        view.release()
        held += got
        if got == 0 and left > 0:
            raise OSError(errno.EIO, "the file became shorter while it was read", piece.path)
        if inside:
            begin = _first_end(buffer, 0, held) + 1
            inside = begin == 0
            gone = held if inside else begin
            if at + gone >= piece.stop:
                return
        else:
            if got == 0:  # the last line of the file has no end
                cut = held
            elif left > 0:
                cut = max(buffer.rfind(b"\n", 0, held), buffer.rfind(b"\r", 0, held)) + 1
            else:
                cut = _first_end(buffer, piece.stop - 1 - at, held) + 1
            gone = cut
            if cut:
                mark = len(_MARK) if at == 0 and buffer.startswith(_MARK) else 0
                yield Block(piece.path, at + mark, np.frombuffer(buffer, np.uint8, cut)[mark:])
        if gone:
            rest = buffer[gone:held]
            buffer[: len(rest)] = rest
            at += gone
            held -= gone


def _first_end(buffer: bytearray, start: int, stop: int) -> int:
    """Place of the first line end, -1 if there is none."""
    found = buffer.find(b"\n", start, stop)
    earlier = buffer.find(b"\r", start, stop if found < 0 else found)
    return found if earlier < 0 else earlier


def format_error(block: Block, error: Malformed) -> FormatError:
    """The error as a caller sees it: with the file, the line's number in it, and its text."""
    text = block.text[error.start : error.start + _SHOWN * 4].tobytes()
    line = text.replace(b"\r", b"\n").partition(b"\n")[0].decode(errors="backslashreplace")
    shown = line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
    number_in_file = line_number(block.path, block.start + error.start)
    return FormatError(block.path, number_in_file, error.wrong, shown)
