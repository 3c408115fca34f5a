"""What a rank holds of the rows of a source, until the matrix is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from shanty.xgboost.buffer import fields, piped
from shanty.xgboost.errors import DataError
from shanty.xgboost.spill import Spill, dropping
from shanty.xgboost.text import ENTRY, Rows

_PIECE = 1 << 18  # entries at a time


@dataclass(frozen=True)
class Summary:
    """What the other ranks have to know of a share."""

    rows: int
    columns: int  # of sparse rows the highest index, plus one
    dense: bool | None  # None: no rows, so it is not known
    given: tuple[str, ...]  # of label, weight, qid: what the rows have
    names: tuple[str, ...] = ()  # of the features
    types: tuple[str, ...] = ()
    groups: tuple[int, int] | None = None  # lowest and highest qid, where none may come back


class Share:
    """Rows that are collected; their values go to disk, what is one number a row stays here."""

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
        """Take some rows. DataError for a number that cannot be, OSError if the disk is full."""
        for name, values in (("label", rows.labels), ("weight", rows.weights)):
            if values is not None and not np.isfinite(values).all():
                which = int(np.flatnonzero(~np.isfinite(values))[0])
                raise DataError(f"the {name} of {self._row(which)} is {values[which]}.")
        for name, kept in (("label", rows.labels), ("weight", rows.weights), ("qid", rows.qids)):
            if kept is not None:
                self._meta[name].append(kept)
        if rows.indptr is None or rows.indices is None:
            self._add_dense(rows.data)
            self.rows += len(rows.data)
        else:
            self._add_sparse(rows.entries, rows.indptr)
            self.rows += len(rows.indptr) - 1

    def summary(
        self, columns: int = 0, names: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Summary:
        """What to tell the others. columns: that the files tell of, though the last be empty."""
        given = tuple(name for name, parts in self._meta.items() if parts)
        width = max(self.columns, columns)
        return Summary(self.rows, width, self.dense, given, tuple(names), tuple(types))

    def meta(self, name: str) -> NDArray[Any] | None:
        """The labels, weights or qids of all rows; None where the source has none."""
        parts = self._meta[name]
        return np.concatenate(parts) if parts else None

    @contextmanager
    def matrix(self, columns: int, dense: bool) -> Iterator[Any]:
        """The rows as an array or SciPy's CSR, `columns` wide, on disk, while this lasts.

        XGBoost copies them; what it has copied is not kept in memory.
        """
        if dense:
            data = self._values.array().reshape(self.rows, columns)
            with dropping([self._values]):
                yield data
            return
        values, indices = Spill(np.float32), Spill(np.int32)
        try:
            self._part_entries(values, indices)
            data = csr_matrix((self.rows, columns), dtype=np.float32)
            data.data, data.indices = values.array(), indices.array()
            data.indptr = self._starts.array()
            with dropping([values, indices, self._starts]):
                yield data
        finally:
            values.close()
            indices.close()

    @contextmanager
    def form(self, columns: int) -> Iterator[Any]:
        """Sparse rows, `columns` wide, in the form that costs XGBoost least, while this lasts.

        It is read once only: not for a QuantileDMatrix.
        """
        head = fields(self.rows, columns, self._entries.size)
        whole = piped(head, self._starts, self._entries) if head else self.matrix(columns, False)
        with whole as data:
            yield data

    def close(self) -> None:
        """Give the disk back."""
        for spill in (self._values, self._entries, self._starts):
            spill.close()

    def _part_entries(self, values: Spill, indices: Spill) -> None:
        """Write out what stands side by side one by one: of arrays of a CSR that lie with gaps
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
    """The entries with those of each row in the order of their columns."""
    matrix = csr_matrix((len(starts) - 1, 1 << 31), dtype=np.float32)
    matrix.data, matrix.indices = entries["value"].copy(), entries["index"].copy()
    matrix.indptr = starts.astype(np.int32)
    matrix.sort_indices()
    found = np.empty(len(entries), ENTRY)
    found["index"], found["value"] = matrix.indices, matrix.data
    return found


def agree(summaries: Sequence[Summary], label: bool) -> Summary:
    """What holds for all ranks, from the summary of each; DataError says who differs, and in what.

    label: whether the caller gives labels beside the files.
    """
    told = [(rank, each) for rank, each in enumerate(summaries) if each.rows]
    whole = sum(each.rows for each in summaries)
    if not told:
        raise DataError("there is no row in it, on any rank.")
    first_rank, first = told[0]
    for rank, each in told[1:]:
        if each.given != first.given:
            raise DataError(
                f"the ranks have read different things: rank {first_rank} {_list(first.given)}, "
                f"rank {rank} {_list(each.given)}. All rows must have the same."
            )
        if each.dense and each.columns != first.columns:
            raise DataError(
                f"the ranks see different columns: rank {first_rank} {first.columns}, rank {rank} "
                f"{each.columns}. All rows must have as many."
            )
    if label and "label" in first.given:
        raise DataError("labels are given twice: in the file and as label=.")
    columns = max(each.columns for _, each in told)
    return Summary(whole, columns, first.dense, first.given, first.names, first.types)


def _list(given: Sequence[str]) -> str:
    return "rows with " + " and ".join(given) if given else "rows without a label"
