"""Reads rows of `.npz` files from within the archive, never more than a piece at a time.

Dense features are the two-dimensional array `X` (or `data`); `y` (or `label`) has the labels, and
`weight` and `qid` are optional. CSR matrices that scipy.sparse.save_npz has written are read as
well, with arrays of the same names beside them. The members have NumPy's format (numpy.lib.format).
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import repeat
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from shanty.xgboost.errors import DataError
from shanty.xgboost.groups import share_of
from shanty.xgboost.text.rows import ENTRY, Rows, entries_of, overlaps

_Features = tuple[NDArray[Any], NDArray[np.int64] | None]
_Stream = Callable[[str, int, int, Iterable[int]], Iterator[NDArray[np.generic]]]
_PIECE = 1 << 18  # values at a time
_NAMES = {"features": ("X", "data"), "label": ("y", "label", "labels")}


class Arrays:
    """npz files as one table. DataError for a file that lacks something.

    columns: the members with the label, the weight, the qid, if they do not have the usual names.
    """

    def __init__(self, files: Sequence[str], columns: dict[str, str]) -> None:
        self._parts = [_Part(name, columns) for name in files]
        first = self._parts[0]
        for part in self._parts:
            if part.kind != first.kind:
                raise DataError(
                    f"{part.file}: its columns or arrays differ from those of {first.file}."
                )
        self.columns = first.columns

    def share(self, rank: int, ranks: int) -> Iterator[Rows]:
        """The rows of one of `ranks` equal parts; groups of a qid stay whole."""
        rows = sum(part.rows for part in self._parts)
        return share_of(self._rows, rows, "qid" in self._parts[0].meta, rank, ranks)

    def _rows(self, start: int, stop: int) -> Iterator[Rows]:
        for number, first, end in overlaps((part.rows for part in self._parts), start, stop):
            yield from self._parts[number].pieces(first, end)


class _Part:
    """One file."""

    def __init__(self, file: str, columns: dict[str, str]) -> None:
        self.file = file
        with zipfile.ZipFile(file) as archive:
            there = {name.removesuffix(".npy") for name in archive.namelist()}
        self.sparse = {"indptr", "indices", "data", "shape"} <= there
        self.meta: dict[str, str] = {}
        for what in ("label", "weight", "qid"):
            named = (columns[what],) if what in columns else _NAMES.get(what, (what,))
            found = [name for name in named if name in there]
            if found:
                self.meta[what] = found[0]
            elif what in columns:
                raise DataError(f"{file}: array {columns[what]} for {what}= not found.")
        if self.sparse:
            self._features = "data"
            self.rows, self.columns = (
                int(each) for each in next(_stream(file, "shape", 0, 2, [2]))
            )
            form: object = "csr"
            if "format" in there:
                with np.load(file) as loaded:
                    form = loaded["format"].item()
            if form not in ("csr", b"csr"):
                raise DataError(f"{file}: the matrix is not CSR. Save matrix.tocsr().")
            if _shape(file, "indptr") != (self.rows + 1,):
                raise DataError(
                    f"{file}: indptr has the shape {_shape(file, 'indptr')}, but there are "
                    f"{self.rows} rows."
                )
        else:
            found = [name for name in _NAMES["features"] if name in there]
            if not found:
                raise DataError(f"{file}: array X or data not found. It has {sorted(there)}.")
            self._features = found[0]
            shape = _shape(file, self._features)
            if len(shape) != 2:
                raise DataError(f"{file}: {self._features} has {len(shape)} dimensions, not two.")
            self.rows, self.columns = shape
        self.kind = self.columns, self.sparse, set(self.meta)  # the same in files of one table
        for what, name in self.meta.items():
            if _shape(file, name) != (self.rows,):
                raise DataError(
                    f"{file}: {name} ({what}) has the shape {_shape(file, name)}, "
                    f"but there are {self.rows} rows."
                )

    def pieces(self, start: int, stop: int) -> Iterator[Rows]:
        """Rows start … stop - 1."""
        step = max(1, _PIECE // (16 if self.sparse else max(self.columns, 1)))
        with ExitStack() as streams:  # an error leaves none of them open

            def stream(
                name: str, first: int, end: int, steps: Iterable[int]
            ) -> Iterator[NDArray[np.generic]]:
                made = _stream(self.file, name, first, end, steps)
                return streams.enter_context(closing(made))

            meta = {
                what: map(
                    self._qids if what == "qid" else _floats,
                    stream(name, start, stop, repeat(step)),
                )
                for what, name in self.meta.items()
            }
            read = self._sparse if self.sparse else self._dense
            for features in read(stream, start, stop, step):
                given: dict[str, Any] = {what: next(each) for what, each in meta.items()}
                yield Rows(*features, given.get("label"), given.get("weight"), given.get("qid"))

    def _qids(self, values: NDArray[np.generic]) -> NDArray[np.uint64]:
        numbers = np.asarray(values)
        wrong = numbers < 0
        if numbers.dtype.kind == "f":
            wrong = ~((numbers >= 0) & (numbers < 2.0**64) & (numbers == np.floor(numbers)))
        if wrong.any():
            raise DataError(
                f"{self.file}: {self.meta['qid']} (qid) needs whole numbers, 0 or more; it has "
                f"{numbers[wrong][0]}."
            )
        return numbers.astype(np.uint64)

    def _dense(self, stream: _Stream, start: int, stop: int, step: int) -> Iterator[_Features]:
        for data in stream(self._features, start, stop, repeat(step)):
            yield _floats(data), None

    def _sparse(self, stream: _Stream, start: int, stop: int, step: int) -> Iterator[_Features]:
        starts = np.concatenate(list(stream("indptr", start, stop + 1, repeat(_PIECE))))
        starts = starts.astype(np.int64)
        counts = [
            int(starts[min(first + step, len(starts) - 1)] - starts[first])
            for first in range(0, stop - start, step)
        ]
        begin, end = int(starts[0]), int(starts[-1])
        values = stream("data", begin, end, counts)
        indices = stream("indices", begin, end, counts)
        for number, first in enumerate(range(0, stop - start, step)):
            part = starts[first : first + step + 1]
            if not counts[number]:
                yield np.empty(0, ENTRY), part - part[0]
                continue
            columns: NDArray[Any] = next(indices)
            if (columns < 0).any() or (columns >= self.columns).any():
                raise DataError(f"{self.file}: indices go beyond its {self.columns} columns.")
            yield entries_of(columns, next(values)), part - part[0]


def _floats(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return values.astype(np.float32)


def _header(
    member: IO[bytes], file: str, name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(member)
    if fortran and len(shape) > 1:
        raise DataError(
            f"{file}: {name} is in Fortran's order, so its rows cannot be shared out. "
            "Save numpy.ascontiguousarray of it."
        )
    if dtype.kind not in "fiub":
        raise DataError(f"{file}: {name} has the type {dtype}; numbers are needed.")
    return shape, dtype


def _shape(file: str, name: str) -> tuple[int, ...]:
    with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
        return _header(member, file, name)[0]


def _stream(
    file: str, name: str, start: int, stop: int, steps: Iterable[int]
) -> Generator[NDArray[np.generic], None, None]:
    """Rows start … stop - 1 of a member, in steps of these sizes; steps of 0 are left out."""
    with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
        shape, dtype = _header(member, file, name)
        width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        member.seek(start * width, 1)
        for step in steps:
            if start >= stop:
                return
            count = min(step, stop - start)
            if not count:
                continue
            raw = member.read(count * width)
            if len(raw) != count * width:
                raise DataError(f"{file}: {name} ends before its {shape[0]} rows.")
            yield np.frombuffer(raw, dtype).reshape(count, *shape[1:])
            start += count
