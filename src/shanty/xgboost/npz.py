"""Reads rows of `.npz` files from within the archive: never more than a piece at a time.

Of dense arrays the features are `X` (or `data`), two-dimensional; `y` (or `label`) are the labels,
and `weight` and `qid` may be there. What scipy.sparse.save_npz writes is read where it is CSR; the
same names may stand beside it. The format of the members is NumPy's (numpy.lib.format).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from shanty.xgboost.errors import DataError
from shanty.xgboost.groups import share_of
from shanty.xgboost.text import Rows

_Features = tuple[NDArray[np.float32], NDArray[np.int32] | None, NDArray[np.int64] | None]
_PIECE = 1 << 18  # values at a time
_NAMES = {"features": ("X", "data"), "label": ("y", "label", "labels")}


class Arrays:
    """npz files as one table. DataError where one has not what is needed.

    columns: which member is the label, the weight, the qid, where it is not the usual name.
    """

    def __init__(self, files: Sequence[str], columns: dict[str, str]) -> None:
        self._parts = [_Part(name, columns) for name in files]
        first = self._parts[0]
        for part in self._parts:
            if part.kind != first.kind:
                raise DataError(
                    f"{part.file}: other columns, or other arrays, than in {first.file}."
                )
        self.columns = first.columns

    def share(self, rank: int, ranks: int) -> Iterator[Rows]:
        """The rows of one of `ranks` equal parts; groups of a qid stay whole."""
        rows = sum(part.rows for part in self._parts)
        return share_of(self._rows, rows, "qid" in self._parts[0].meta, rank, ranks)

    def _rows(self, start: int, stop: int) -> Iterator[Rows]:
        first = 0
        for part in self._parts:
            begin, end = max(start - first, 0), min(stop - first, part.rows)
            if begin < end:
                yield from part.pieces(begin, end)
            first += part.rows


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
                raise DataError(f"{file}: there is no array {columns[what]} for {what}=.")
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
                raise DataError(f"{file}: there is no array X or data. It has {sorted(there)}.")
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
        meta = {
            what: map(
                self._qids if what == "qid" else _floats,
                _stream(self.file, name, start, stop, repeat(step)),
            )
            for what, name in self.meta.items()
        }
        read = self._sparse if self.sparse else self._dense
        for features in read(start, stop, step):
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

    def _dense(self, start: int, stop: int, step: int) -> Iterator[_Features]:
        for data in _stream(self.file, self._features, start, stop, repeat(step)):
            yield _floats(data), None, None

    def _sparse(self, start: int, stop: int, step: int) -> Iterator[_Features]:
        starts = np.concatenate(list(_stream(self.file, "indptr", start, stop + 1, repeat(_PIECE))))
        starts = starts.astype(np.int64)
        counts = [
            int(starts[min(first + step, len(starts) - 1)] - starts[first])
            for first in range(0, stop - start, step)
        ]
        begin, end = int(starts[0]), int(starts[-1])
        values = _stream(self.file, "data", begin, end, counts)
        indices = _stream(self.file, "indices", begin, end, counts)
        for number, first in enumerate(range(0, stop - start, step)):
            part = starts[first : first + step + 1]
            if not counts[number]:
                yield np.empty(0, np.float32), np.empty(0, np.int32), part - part[0]
                continue
            columns = np.asarray(next(indices))
            if (columns < 0).any() or (columns >= self.columns).any():
                raise DataError(f"{self.file}: indices go beyond its {self.columns} columns.")
            yield _floats(next(values)), columns.astype(np.int32), part - part[0]


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
) -> Iterator[NDArray[np.generic]]:
    """Rows start … stop - 1 of a member, so many at a time; steps of no row are left out."""
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
