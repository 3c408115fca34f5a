"""Reads rows of Parquet files in bounded memory: only what a rank's share needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shanty.xgboost.errors import DataError
from shanty.xgboost.groups import share_of
from shanty.xgboost.text.rows import Rows

_BATCH = 1 << 16  # values that are decoded at a time


class Table:
    """Parquet files as one table. ImportError without pyarrow, DataError for a bad file.

    columns: which column is the label, the weight, the qid.
    """

    def __init__(self, files: Sequence[str], columns: dict[str, str]) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ModuleNotFoundError:
            raise ImportError("Parquet files need pyarrow: pip install pyarrow") from None
        self._arrow = pa
        self._names = files
        self._files = []
        for name in files:
            try:
                self._files.append(parquet.ParquetFile(name))
            except pa.ArrowException as error:
                raise DataError(f"{name}: not a Parquet file: {error}") from None
        self._meta = columns
        schema = self._files[0].schema_arrow
        for name, file in zip(files, self._files, strict=True):
            if [(f.name, f.type) for f in file.schema_arrow] != [(f.name, f.type) for f in schema]:
                raise DataError(f"{name}: its columns differ from those of {files[0]}.")
        for what, column in columns.items():
            if column not in schema.names:
                raise DataError(f"{files[0]}: column {column} for {what}= not found.")
        self.names = [name for name in schema.names if name not in columns.values()]
        self.types = [self._type(schema.field(name), files[0]) for name in self.names]
        for column in columns.values():
            self._type(schema.field(column), files[0])

    def share(self, rank: int, ranks: int) -> Iterator[Rows]:
        """The rows of one of `ranks` equal parts; groups of a qid stay whole."""
        rows = sum(file.metadata.num_rows for file in self._files)
        return share_of(self._rows, rows, "qid" in self._meta, rank, ranks)

    def _rows(self, start: int, stop: int) -> Iterator[Rows]:
        wanted = [*self.names, *self._meta.values()]
        batch = max(1, _BATCH * 16 // len(wanted))
        first = 0  # row of the table at which a row group begins
        for name, file in zip(self._names, self._files, strict=True):
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if first < stop and first + count > start:
                    at = first
                    for part in file.iter_batches(batch, row_groups=[group], columns=wanted):
                        begin, end = max(start - at, 0), min(stop - at, part.num_rows)
                        at += part.num_rows
                        if begin < end:
                            yield self._convert(part.slice(begin, end - begin), name)
                first += count

    def _convert(self, part: Any, file: str) -> Rows:
        data = np.empty((part.num_rows, len(self.names)), np.float32)
        for index, name in enumerate(self.names):
            data[:, index] = self._floats(part, name)
        given = {
            what: self._qids(part, name, file) if what == "qid" else self._floats(part, name)
            for what, name in self._meta.items()
        }
        return Rows(data, None, given.get("label"), given.get("weight"), given.get("qid"))

    def _floats(self, part: Any, name: str) -> Any:
        column = part.column(name).cast(self._arrow.float32(), safe=False)
        return column.to_numpy(zero_copy_only=False)

    def _qids(self, part: Any, name: str, file: str) -> Any:
        column = part.column(name)
        if column.null_count:
            raise DataError(f"{file}: column {name} (qid) has a null. Give every row a group.")
        try:
            return column.cast(self._arrow.uint64()).to_numpy(zero_copy_only=False)
        except self._arrow.ArrowException as error:
            raise DataError(
                f"{file}: column {name} (qid) needs whole numbers, 0 or more: {error}"
            ) from None

    def _type(self, field: Any, file: str) -> str:
        """XGBoost's name for a column's type."""
        kinds = self._arrow.types
        if kinds.is_boolean(field.type):
            return "i"
        if kinds.is_integer(field.type):
            return "int"
        if kinds.is_floating(field.type) or kinds.is_decimal(field.type):
            return "float"
        raise DataError(
            f"{file}: column {field.name} is of type {field.type}. XGBoost needs numbers: "
            "convert the column, or leave it out of the file."
        )
