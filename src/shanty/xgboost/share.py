"""Collects a rank's share of the rows, on disk, until XGBoost's matrix is made of it.

XGBoost copies what it is given. Arrays in memory beside the matrix made of them would be twice the
share; so they are written, piece by piece as they are read, to temporary files without a name. From
there they go to XGBoost in one of two ways. Arrays are mapped, and while XGBoost reads the mapping
a thread drops what has been read; the system may keep those pages in its cache for as long as it
has memory to spare. Sparse rows go through a pipe, in XGBoost's own binary form, which costs it
half the time of SciPy's CSR.

The form is that of DMatrix.save_binary, which XGBoost loads by the name of a file: named fields,
then where each row begins (their number, and a uint64 each), then the entries (their number, and a
uint32 and a float32 each). The fields are copied from what the installed XGBoost writes for a
matrix without rows, so additional fields do not matter; only the numbers of rows and entries are
replaced.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_matrix

from shanty.xgboost.errors import DataError
from shanty.xgboost.installed import xgboost
from shanty.xgboost.text.rows import ENTRY, Rows, entries_of

_PIECE = 1 << 18  # entries at a time
_EVERY = 0.004  # seconds between two times that pages are dropped
_SPLICE = 1 << 20  # bytes that go to a pipe at a time, if it takes as much
_PIPE = 1 << 20  # bytes that the pipe holds, if it may: fewer turns between writer and reader
_SCALAR = b"\x04\x01"  # a field of the type uint64, one value of it
_NO_ROWS = struct.pack("<QQQ", 1, 0, 0)  # row 0 would begin at 0; no entries


@dataclass(frozen=True)
class Summary:
    """Facts of a share that the other ranks have to know."""

    rows: int
    columns: int  # of sparse rows the highest index, plus one
    dense: bool | None  # None: no rows, so it is not known
    given: tuple[str, ...]  # of label, weight, qid: what the rows have
    names: tuple[str, ...] = ()  # of the features
    types: tuple[str, ...] = ()
    groups: tuple[int, int] | None = None  # lowest and highest qid, where none may come back


class Share:
    """Collects rows. Their values go to disk; labels, weights and qids stay in memory."""

    def __init__(self) -> None:
        self._values = Spill(np.float32)  # of dense rows
        self._entries = Spill(ENTRY)  # of sparse rows
        self._starts = Spill(np.int64)  # of sparse rows: where each begins among the values
        self._starts.append(np.zeros(1, np.int64))
        self._meta: dict[str, list[NDArray[np.generic]]] = {"label": [], "weight": [], "qid": []}
        self.rows = 0
        self.columns = 0
        self.dense: bool | None = None

    def add(self, rows: Rows) -> None:
        """Takes some rows. DataError for an invalid number, OSError if the disk is full."""
        for name, values in (("label", rows.labels), ("weight", rows.weights)):
            if values is not None and not np.isfinite(values).all():
                which = int(np.flatnonzero(~np.isfinite(values))[0])
                raise DataError(f"the {name} of {self._row(which)} is {values[which]}.")
        for name, kept in (("label", rows.labels), ("weight", rows.weights), ("qid", rows.qids)):
            if kept is not None:
                self._meta[name].append(kept)
        if rows.indptr is None:
            self._add_dense(rows.data)
        else:
            self._add_sparse(rows.data, rows.indptr)
        self.rows += rows.size

    def summary(
        self, columns: int = 0, names: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Summary:
        """The facts of this share. columns: as the files give them; the last may be empty."""
        given = tuple(name for name, parts in self._meta.items() if parts)
        width = max(self.columns, columns)
        return Summary(self.rows, width, self.dense, given, tuple(names), tuple(types))

    def meta(self, name: str) -> NDArray[Any] | None:
        """The labels, weights or qids of all rows; None where the source has none."""
        parts = self._meta[name]
        return np.concatenate(parts) if parts else None

    @contextmanager
    def matrix(self, columns: int, dense: bool) -> Iterator[Any]:
        """The rows as an array or SciPy's CSR, `columns` wide, on disk, until the block ends.

        XGBoost copies them; what it has copied does not stay in memory.
        """
        if dense:
            data = self._values.array().reshape(self.rows, columns)
            with dropping([self._values]):
                yield data
            return
        with closing(Spill(np.float32)) as values, closing(Spill(np.int32)) as indices:
            self._part_entries(values, indices)
            data = csr_matrix((self.rows, columns), dtype=np.float32)
            data.data, data.indices = values.array(), indices.array()
            data.indptr = self._starts.array()
            with dropping([values, indices, self._starts]):
                yield data

    def form(self, columns: int) -> AbstractContextManager[Any]:
        """Sparse rows, `columns` wide, in the form that XGBoost reads fastest.

        It can be read once only: not for a QuantileDMatrix.
        """
        head = fields(self.rows, columns, self._entries.size)
        return piped(head, self._starts, self._entries) if head else self.matrix(columns, False)

    def close(self) -> None:
        """Frees the disk."""
        for spill in (self._values, self._entries, self._starts):
            spill.close()

    def _part_entries(self, values: Spill, indices: Spill) -> None:
        """Writes indices and values to arrays of their own: of arrays of a CSR that lie with gaps
        between their elements XGBoost (3.2) reads the wrong ones."""
        entries = self._entries.array()
        with dropping([self._entries]):
            for first in range(0, len(entries), _PIECE):
                some = entries[first : first + _PIECE]
                values.append(some["value"])
                indices.append(some["index"])

    def _row(self, which: int) -> str:
        return f"row {self.rows + which + 1} of this rank's share"

    def _add_dense(self, values: NDArray[np.float32]) -> None:
        if self.dense and values.shape[1] != self.columns:
            raise DataError(
                f"{self._row(0)} has {values.shape[1]} columns, those before it {self.columns}."
            )
        if np.isinf(values).any():
            which = int(np.flatnonzero(np.isinf(values).any(axis=1))[0])
            raise DataError(f"{self._row(which)} has an infinite value.")
        self.dense, self.columns = True, values.shape[1]
        self._values.append(values)

    def _add_sparse(self, entries: NDArray[Any], starts: NDArray[np.int64]) -> None:
        values, indices = entries["value"], entries["index"]
        if not np.isfinite(values).all():
            if np.isinf(values).any():
                entry = int(np.flatnonzero(np.isinf(values))[0])
                which = int(np.searchsorted(starts, entry, "right")) - 1
                raise DataError(f"{self._row(which)} has an infinite value.")
            there = ~np.isnan(values)  # what is NaN is missing, and has no entry
            starts = np.concatenate([[0], np.cumsum(there)])[starts]
            entries = entries[there]
            indices = entries["index"]
        falls = indices[1:] < indices[:-1]
        inner = starts[1:-1]
        falls[inner[(inner > 0) & (inner < len(indices))] - 1] = False
        if falls.any():  # XGBoost looks for columns in rows that are sorted
            entries = _sorted(entries, starts)
        if len(indices):
            self.columns = max(self.columns, int(indices.max()) + 1)
        self.dense = False
        self._starts.append(starts[1:] + self._entries.size)
        self._entries.append(entries)


def _sorted(entries: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """The entries, sorted by column within each row."""
    matrix = csr_matrix((len(starts) - 1, 1 << 31), dtype=np.float32)
    matrix.data, matrix.indices = entries["value"].copy(), entries["index"].copy()
    matrix.indptr = starts.astype(np.int32)
    matrix.sort_indices()
    return entries_of(matrix.indices, matrix.data)


def agree(summaries: Sequence[Summary], label: bool) -> Summary:
    """Joins the summaries of all ranks; DataError names the rank that differs, and how.

    label: whether the caller gives labels beside the files.
    """
    there = [(rank, each) for rank, each in enumerate(summaries) if each.rows]
    whole = sum(each.rows for each in summaries)
    if not there:
        raise DataError("it has no rows on any rank.")
    first_rank, first = there[0]
    for rank, each in there[1:]:
        if each.given != first.given:
            raise DataError(
                f"the ranks have read different rows: rank {first_rank} {_list(first.given)}, rank "
                f"{rank} {_list(each.given)}. All rows must have the same."
            )
        if each.dense and each.columns != first.columns:
            raise DataError(
                f"the ranks see different numbers of columns: rank {first_rank} {first.columns}, "
                f"rank {rank} {each.columns}. All rows must have the same number."
            )
    if label and "label" in first.given:
        raise DataError("labels are given twice: in the file and as label=.")
    columns = max(each.columns for _, each in there)
    return Summary(whole, columns, first.dense, first.given, first.names, first.types)


def _list(given: Sequence[str]) -> str:
    return "rows with " + " and ".join(given) if given else "rows without a label"


# ---- arrays on disk ----------------------------------------------------------------------------


class Spill:
    """One array that grows at its end, in a temporary file."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file = TemporaryFile(buffering=0, dir=folder())  # noqa: SIM115 (it lives on)
        self.map: mmap.mmap | None = None
        self.size = 0  # elements

    def append(self, values: NDArray[np.generic]) -> None:
        """Writes `values` at the end. OSError where the disk is full."""
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
        """Writes all of it to a pipe, without a copy where the system can do that."""
        file, place, end = self._file.fileno(), 0, self.size * self._dtype.itemsize
        while place < end:
            if hasattr(os, "splice"):
                place += os.splice(file, pipe, min(end - place, _SPLICE), offset_src=place)
            else:
                place += os.write(pipe, os.pread(file, min(end - place, _SPLICE), place))

    def close(self) -> None:
        """Closes the file; the arrays must be gone, or live as long as they are used."""
        self.map = None
        self._file.close()


def folder() -> str:
    """The folder of temporary files: $TMPDIR, else /var/tmp, since /tmp may be memory."""
    if os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK):
        return gettempdir()
    return "/var/tmp"


@contextmanager
def dropping(spills: Sequence[Spill]) -> Iterator[None]:
    """Drops from memory what has been read of the mappings, until the block ends."""
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
    """What to do if the folder is full."""
    where = Path(folder())
    return f"{where} holds this rank's share until the matrix is made; TMPDIR sets another folder."


# ---- XGBoost's own binary form -----------------------------------------------------------------


def fields(rows: int, columns: int, entries: int) -> bytes:
    """The fields that stand before the rows; empty where this XGBoost writes something else."""
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
    """The file that XGBoost writes of a matrix without rows; empty where it does not load it."""
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
    """Gives a name under which XGBoost can read the matrix, once, until the block ends.

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
        os.close(reading)  # a thread that still writes then gets BrokenPipeError
        thread.join()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
