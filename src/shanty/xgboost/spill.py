"""A rank's share on its way into a matrix: arrays that are on disk, not in memory.

XGBoost copies what it is given. Arrays in memory beside the matrix made of them would be twice the
share; so they are written, piece by piece as they are read, to temporary files that have no name
any more. From there they go to XGBoost through a pipe, or they are mapped, and while XGBoost goes
through the mapping a thread drops what has been read. The system may keep those pages in its cache
for as long as it has memory to spare.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_EVERY = 0.004  # seconds between two times that pages are dropped
_PIECE = 1 << 20  # bytes that go to a pipe at a time, if it takes as much


class Spill:
    """One array that grows at its end, in a temporary file."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file = TemporaryFile(buffering=0, dir=folder())  # noqa: SIM115 (it lives on)
        self.map: mmap.mmap | None = None
        self.size = 0  # elements

    def append(self, values: NDArray[np.generic]) -> None:
        """Write `values` at the end. OSError where the disk is full."""
        whole = np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data
        done = 0
        while done < len(whole):
            done += self._file.write(whole[done:]) or 0
        self.size += len(whole) // self._dtype.itemsize

    def array(self) -> NDArray[Any]:
        """All of it, mapped."""
        if not self.size:
            return np.empty(0, self._dtype)
        self.map = self.map or mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        return np.frombuffer(self.map, self._dtype)

    def pour(self, pipe: int) -> None:
        """Write all of it to a pipe, without a copy where the system can do that."""
        file, place, end = self._file.fileno(), 0, self.size * self._dtype.itemsize
        while place < end:
            if hasattr(os, "splice"):
                place += os.splice(file, pipe, min(end - place, _PIECE), offset_src=place)
            else:
                place += os.write(pipe, os.pread(file, min(end - place, _PIECE), place))

    def close(self) -> None:
        """Let go of the file; the arrays must be gone, or live as long as they are used."""
        self.map = None
        self._file.close()


def folder() -> str:
    """Where temporary files go: $TMPDIR, else /var/tmp, since /tmp may be memory."""
    if os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK):
        return gettempdir()
    return "/var/tmp"


@contextmanager
def dropping(spills: Sequence[Spill]) -> Iterator[None]:
    """While this lasts, keep out of memory what has been read of the mappings."""
    maps = [spill.map for spill in spills if spill.map is not None]
    done = threading.Event()

    def drop() -> None:
        while not done.wait(_EVERY):
            for each in maps:
                each.madvise(mmap.MADV_DONTNEED)

    thread = threading.Thread(target=drop, name="shanty-drop", daemon=True)
    if maps:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if maps:
            thread.join()


def room() -> str:
    """What to say of the place when it is full."""
    where = folder()
    return (
        f"{Path(where)} takes this rank's share until the matrix is made; "
        "TMPDIR names another folder."
    )
