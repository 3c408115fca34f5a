"""Bytes of text files by their place: plain ones and gzipped ones look the same."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

PathLike = str | os.PathLike[str]

_STEP = 1 << 20  # bytes unpacked at a time while going forward in a gzipped file
_PAUSE = 1 << 25  # bytes unpacked between two times that the caller is asked


class Source(Protocol):
    """A file open for reading; a context manager."""

    def read_at(self, place: int, into: memoryview) -> int:
        """Fill `into` with the bytes from `place` on; how many: fewer at the end only."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def source(path: PathLike) -> Source:
    """Open a file; one whose name ends in .gz is unpacked."""
    return _Packed(os.fspath(path)) if is_packed(path) else _Plain(os.fspath(path))


def is_packed(path: PathLike) -> bool:
    """Whether the file is gzipped, by its name."""
    return os.fspath(path).endswith(".gz")


def never() -> None:
    """Nothing to do between two pieces of work."""


def sizes(files: Sequence[PathLike], between: Callable[[], None] = never) -> list[int]:
    """Bytes of each file; of a `.gz` those of its content, for which all of it is unpacked once.

    Ranks may share this work: rank r measures files[r::n], they exchange, and pass `sizes=` on.
    `between` is called between two pieces of it, and may raise.
    """
    return [
        _unpacked_size(os.fspath(file), between) if is_packed(file) else Path(file).stat().st_size
        for file in files
    ]


def _unpacked_size(path: str, between: Callable[[], None]) -> int:
    with _Packed(path) as packed:
        place = 0
        while (at := packed.forward_to(place + _PAUSE)) == place + _PAUSE:
            place = at
            between()
        return at


class _Plain:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def read_at(self, place: int, into: memoryview) -> int:
        done = 0
        while done < len(into):
            got = os.preadv(self._descriptor, [into[done:]], place + done)
            if got == 0:
                break
            done += got
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class _Packed:
    """A gzipped file. Going back means unpacking from its beginning again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = gzip.open(path, "rb")  # noqa: SIM115 - closed by __exit__
        self._at = 0

    def read_at(self, place: int, into: memoryview) -> int:
        if place < self._at:
            self._file.close()
            self._file = gzip.open(self._path, "rb")  # noqa: SIM115 - closed by __exit__
            self._at = 0
        self.forward_to(place)
        return self._read(into) if self._at == place else 0

    def forward_to(self, place: int) -> int:
        """Go on to a place, or to the end if that is before it; where it came to."""
        if place == self._at:
            return self._at
        waste = memoryview(bytearray(_STEP))
        while self._at < place:
            if not self._read(waste[: place - self._at]):
                break
        return self._at

    def _read(self, into: memoryview) -> int:
        done = 0
        try:
            while done < len(into):
                got = self._file.readinto(into[done:])
                if not got:
                    break
                done += got
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            wrong = f"no whole gzip file ({error}): pack it again"
            raise OSError(errno.EIO, wrong, self._path) from error
        self._at += done
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
