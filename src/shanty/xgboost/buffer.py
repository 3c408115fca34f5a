"""XGBoost's own binary form of a matrix, in which it takes sparse rows with the least work.

The form is that of DMatrix.save_binary, which XGBoost loads by the name of a file: fields that say
their names, then where each row begins (how many, and an uint64 each), then the entries (how many,
and an uint32 and a float32 each). The fields are taken from what the XGBoost in use writes of a
matrix without rows, so one more or less is no matter; only the numbers of rows and entries are put
in. XGBoost reads the rest from a pipe. As SciPy's CSR the same rows take it twice as long.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.sparse import csr_matrix

from shanty.xgboost.installed import xgboost
from shanty.xgboost.spill import Spill, folder

_SCALAR = b"\x04\x01"  # a field of the type uint64, one value of it
_NO_ROWS = struct.pack("<QQQ", 1, 0, 0)  # row 0 would begin at 0; there is no entry
_PIPE = 1 << 20  # bytes that the pipe holds, if it may: fewer turns between writer and reader


def fields(rows: int, columns: int, entries: int) -> bytes:
    """What stands before the rows; empty where this XGBoost writes something else."""
    with ThreadPoolExecutor(1) as thread:
        # XGBoost's ranks compare the columns of any matrix that they make, but for those in a
        # thread in which they are not joined.
        written = thread.submit(_without_rows, columns).result()
    found = bytearray(written.removesuffix(_NO_ROWS))
    if len(found) == len(written):
        return b""
    for name, number in (("num_row", rows), ("num_nonzero", entries)):
        field = struct.pack("<Q", len(name)) + name.encode() + _SCALAR
        if found.count(field) != 1:
            return b""
        struct.pack_into("<Q", found, found.index(field) + len(field), number)
    return bytes(found)


def _without_rows(columns: int) -> bytes:
    """What XGBoost writes of a matrix without rows; empty where it does not load that any more."""
    with TemporaryDirectory(dir=folder()) as place:
        path = Path(place, "none")
        xgboost.DMatrix(csr_matrix((0, columns), dtype=np.float32)).save_binary(path)
        try:
            loads = xgboost.DMatrix(str(path)).num_col() == columns
        except xgboost.core.XGBoostError:
            loads = False
        return path.read_bytes() if loads else b""


@contextmanager
def piped(head: bytes, starts: Spill, entries: Spill) -> Iterator[str]:
    """A name under which XGBoost reads the matrix, once, while this lasts.

    head: of `fields`. starts: int64, as in CSR. entries: ENTRY; in each row columns rise, and no
    value is NaN.
    """
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE)

    def feed() -> None:
        try:
            with suppress(BrokenPipeError):
                _write(writing, head + struct.pack("<Q", starts.size))
                starts.pour(writing)
                _write(writing, struct.pack("<Q", entries.size))
                entries.pour(writing)
        finally:
            os.close(writing)

    thread = threading.Thread(target=feed, name="shanty-feed", daemon=True)
    thread.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)  # who still writes then has nobody who reads
        thread.join()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
