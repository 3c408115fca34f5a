"""Reads the lines of text files by their place; gzipped files look like plain ones.

The files, end to end, are N bytes in a row; rank r of n has the bytes [r · N / n, (r + 1) · N / n)
and with them all lines that begin there. A line ends with \\n, \\r\\n or \\r.
"""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.text.rows import FormatError, Malformed, Rows, overlaps, whole_share

PathLike = str | os.PathLike[str]

_File = FileIO | gzip.GzipFile

_PAUSE = 1 << 25  # bytes unpacked between two calls of the caller's function
_BEYOND = 4096  # bytes read at a time to find where the last line ends
_LOOK = 1 << 16  # bytes read at a time to count lines
_SHOWN = 120  # characters of a line in a message
_MARK = b"\xef\xbb\xbf"  # of UTF-8, at the beginning of some files


class Block(NamedTuple):
    """Whole lines of a file; `start` is the place of the text in it."""

    path: str
    start: int
    text: NDArray[np.uint8]


def blocks(
    files: Sequence[PathLike], known: Sequence[int], start: int, stop: int, chunk: int
) -> Iterator[Block]:
    """Yields the lines that begin in bytes [start, stop), in blocks of about `chunk` bytes.

    known: the sizes of the files, which lie end to end. A block has one line at least.
    """
    for number, first, last in overlaps(known, start, stop):
        path = os.fspath(files[number])
        with _opened(path) as file:
            yield from _blocks(file, path, first, last, chunk)


def never() -> None:
    """Does nothing between two pieces of work."""


def measure(files: Sequence[PathLike], between: Callable[[], None] = never) -> list[int]:
    """Bytes of each file; of a `.gz` those of its content, for which all of it is unpacked once.

    Ranks may share this work: rank r measures files[r::n], then they exchange the sizes. `between`
    is called between two pieces of the work, and may raise.
    """
    return [
        _unpacked_size(os.fspath(file), between) if _packed(file) else Path(file).stat().st_size
        for file in files
    ]


def byte_share(
    files: Sequence[PathLike], known: Sequence[int] | None, rank: int, ranks: int
) -> tuple[Sequence[int], int, int]:
    """The sizes of the files, and the first byte and the end of a rank's share of all bytes."""
    each = measure(files) if known is None else known
    return each, sum(each) * rank // ranks, sum(each) * (rank + 1) // ranks


def line_number(path: str, place: int) -> int:
    """Number (from 1) of the line that begins at a byte of a file; all before it is read."""
    ends, before = 0, bytearray()
    with _opened(path) as file:
        for at in range(0, place, _LOOK):
            text = _read(file, at, min(_LOOK, place - at))
            ends += text.count(b"\n") + text.count(b"\r") - (before + text).count(b"\r\n")
            before = text[-1:]
    return ends + 1


def read_share(
    files: Sequence[PathLike],
    known: Sequence[int] | None,
    parse: Callable[[NDArray[np.uint8]], Rows | None],
    rank: int,
    ranks: int,
    chunk: int,
    skip: int,
    extra: int,
) -> Iterator[Rows]:
    """Rows of a rank's share, as `parse` makes them of a block's text; FormatError for Malformed.

    known: the sizes of the files, if they are known. See `whole_share` for skip and extra.
    """
    each, start, stop = byte_share(files, known, rank, ranks)

    def read(start: int, stop: int, chunk: int) -> Iterator[Rows]:
        for block in blocks(files, each, start, stop, chunk):
            try:
                rows = parse(block.text)
            except Malformed as error:
                text = block.text[error.start : error.start + _SHOWN * 4].tobytes()
                line = text.replace(b"\r", b"\n").partition(b"\n")[0]
                number = line_number(block.path, block.start + error.start)
                shown = shortened(line.decode(errors="backslashreplace"))
                raise FormatError(block.path, number, error.wrong, shown) from None
            if rows is not None:
                yield rows

    return whole_share(read, start, stop, sum(each), chunk, skip, extra)


def shortened(line: str) -> str:
    """A line as a message shows it."""
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"


def _packed(path: PathLike) -> bool:
    return os.fspath(path).endswith(".gz")


@contextmanager
def _opened(path: str) -> Iterator[_File]:
    """Opens a file for `_read`; one whose name ends in .gz is unpacked."""
    try:
        with gzip.open(path) if _packed(path) else Path(path).open("rb", buffering=0) as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        wrong = f"the gzip file is incomplete or damaged ({error}): pack it again"
        raise OSError(errno.EIO, wrong, path) from error


def _unpacked_size(path: str, between: Callable[[], None]) -> int:
    with _opened(path) as file:
        place = 0
        while (at := file.seek(place + _PAUSE)) == place + _PAUSE:
            place = at
            between()
        return at


def _read(file: _File, place: int, count: int) -> bytearray:
    """Bytes of a file from a place on; fewer than `count` at its end only.

    Where the file is gzipped, going back means unpacking from its beginning again.
    """
    text = bytearray(count)
    done = 0
    with memoryview(text) as into:
        while done < count:
            if isinstance(file, gzip.GzipFile):
                there = file.seek(place + done) == place + done
                got = file.readinto(into[done:]) if there else 0
            else:
                got = os.preadv(file.fileno(), [into[done:]], place + done)
            if got == 0:
                break
            done += got
    del text[done:]
    return text


def _blocks(file: _File, path: str, start: int, stop: int, chunk: int) -> Iterator[Block]:
    """Yields the blocks of a part of a file; `held` has the file's bytes from `at` on."""
    held = bytearray()
    # The line that the byte before belongs to began before the part, unless that byte ends it.
    at = max(start - 1, 0)
    inside = start > 0
    while at < stop:
        left = stop - (at + len(held))
        wanted = min(max(chunk, len(held)), left) if left > 0 else _BEYOND
        more = _read(file, at + len(held), wanted)
        if not more and left > 0:
            raise OSError(errno.EIO, "the file became shorter while it was read", path)
        held = held + more
        if inside:
            cut = _first_end(held, 0) + 1
            inside = cut == 0
            cut = cut or len(held)
        else:
            if not more:  # the last line of the file has no end
                cut = len(held)
            elif left > 0:
                cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
            else:
                cut = _first_end(held, stop - 1 - at) + 1
            if cut:
                mark = len(_MARK) if at == 0 and held.startswith(_MARK) else 0
                yield Block(path, at + mark, np.frombuffer(held, np.uint8, cut)[mark:])
        held = held[cut:]
        at += cut


def _first_end(text: bytearray, start: int) -> int:
    """Place of the first line end from `start` on, -1 if there is none."""
    found = text.find(b"\n", start)
    earlier = text.find(b"\r", start, len(text) if found < 0 else found)
    return found if earlier < 0 else earlier
