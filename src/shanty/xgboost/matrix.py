"""Makes XGBoost's matrices of this rank's share of some files.

Data that is not a file name is this rank's share itself: it is passed to XGBoost, coded by the
categories of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from shanty.xgboost.agreement import Facts, compare, of_columns
from shanty.xgboost.columns import shared
from shanty.xgboost.communication import Communicator, blaming_the_lost, current
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import DataError, WorldError
from shanty.xgboost.groups import sizes as group_sizes
from shanty.xgboost.installed import xgboost
from shanty.xgboost.loading import COLUMNS, Loaded, load
from shanty.xgboost.sources import is_source

_OF_ROWS = ["label", "weight", "qid", "base_margin", "label_lower_bound", "label_upper_bound"]
_NO_ROWS = csr_matrix((0, 0), dtype=np.float32)


class DMatrix(xgboost.DMatrix):  # type: ignore[misc]
    """XGBoost's DMatrix of this rank's rows. All ranks make it, at the same point of the script.

    data: a path, a URI as XGBoost has them, a glob, or a list of those: all ranks name the same
        files, and each reads its share, once: LibSVM, CSV, Parquet, npz. Anything else is this
        rank's share itself, as XGBoost takes it.
    label, weight, qid: with Parquet and npz, names of columns. Arrays beside files are of all rows,
        or of this rank's. The other arguments are XGBoost's.
    Raises DataError, on all ranks, for data that cannot be trained on.
    """

    def __init__(self, data: Any, label: Any = None, **options: Any) -> None:
        ranks, construct = current(), super().__init__
        with share(ranks, data, label, options, read_once=True) as (rows, arguments):
            made_by_all(ranks, self, lambda: construct(rows, **arguments))


class QuantileDMatrix(xgboost.QuantileDMatrix):  # type: ignore[misc]
    """XGBoost's QuantileDMatrix of this rank's rows; as DMatrix here.

    The bins cover the rows of all ranks.
    """

    def __init__(self, data: Any, label: Any = None, **options: Any) -> None:
        ranks, construct = current(), super().__init__
        with share(ranks, data, label, options) as (rows, arguments):
            bins = {name: arguments[name] for name in ("max_bin", "ref") if name in arguments}

            def checked() -> None:
                _finite(rows, arguments.get("missing"))
                construct(rows, **arguments)

            made_by_all(ranks, self, checked, lambda: xgboost.QuantileDMatrix(_NO_ROWS, **bins))


@contextmanager
def share(
    ranks: Communicator, data: Any, label: Any, options: dict[str, Any], read_once: bool = False
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The rows as XGBoost takes them and the arguments beside them, while a matrix is made.

    read_once: XGBoost looks at the rows once only, which a faster form allows.
    """
    own = {"label": label, **options}
    if not is_source(data):
        yield shared(ranks, data, own), own
        return
    columns = {name: own.pop(name) for name in COLUMNS if isinstance(own.get(name), str)}
    loaded = load(ranks, data, columns, own.get("label") is not None)
    ready: list[tuple[Any, dict[str, Any]]] = []
    with ExitStack() as stack:
        stack.callback(loaded.share.close)

        def prepare(_: object) -> None:
            arguments = _arguments(loaded, own)
            names, missing = arguments.get("feature_names"), arguments.get("missing")
            width = max(loaded.agreed.columns, len(names) if names is not None else 0)
            if read_once and not loaded.agreed.dense and (missing is None or np.isnan(missing)):
                form = loaded.share.form(width)
            else:
                form = loaded.share.matrix(width, bool(loaded.agreed.dense))
            ready.append((stack.enter_context(form), arguments))

        together(ranks, f"loading {data}", prepare, lambda _: None)
        yield ready[0]


def _arguments(loaded: Loaded, own: dict[str, Any]) -> dict[str, Any]:
    """XGBoost's arguments beside the rows: from the files, and from the caller."""
    arguments: dict[str, Any] = {}
    for name in loaded.agreed.given:
        found = loaded.share.meta(name)
        found = found if found is not None else np.empty(0, np.float32)
        if name == "qid":
            arguments["group"] = group_sizes(found)
        else:
            arguments[name] = found
    arguments.update(loaded.given)
    if loaded.agreed.names:
        arguments["feature_names"] = list(loaded.agreed.names)
        arguments["feature_types"] = list(loaded.agreed.types)
    for name, value in own.items():
        if value is None:
            continue
        if name in ("qid", "group"):
            if "group" in arguments:
                raise DataError(f"groups are given twice: in the files and as {name}=.")
            if loaded.ranks > 1:
                raise DataError(
                    f"{name}= beside a file cannot keep groups whole on several ranks. Write qid "
                    "into the file."
                )
        if name in arguments and name in _OF_ROWS:
            raise DataError(f"{name} is given twice: in the files and as {name}=.")
        if name == "feature_names":
            # Columns of sparse rows may be empty at the end.
            count, columns = 1 if isinstance(value, str) else len(value), loaded.agreed.columns
            if count < columns or (loaded.agreed.dense and count > columns):
                raise DataError(f"feature_names has {count} names, the files {columns} columns.")
        arguments[name] = _own_rows(loaded, name, value) if name in _OF_ROWS else value
    return arguments


def _own_rows(loaded: Loaded, name: str, value: Any) -> Any:
    """The values of this rank's rows, out of one value for each row of all files."""
    count, rows = len(value), loaded.share.rows
    if count == rows and rows != loaded.agreed.rows:
        return value
    if count != loaded.agreed.rows:
        raise DataError(
            f"{name}= has {count} values, but the files have {loaded.agreed.rows} rows, {rows} of "
            "them on this rank."
        )
    taken = slice(loaded.first, loaded.first + rows)
    return value.iloc[taken] if hasattr(value, "iloc") else value[taken]


def made_by_all(
    ranks: Communicator,
    matrix: Any,
    construct: Callable[[], object],
    attend: Callable[[], object] = lambda: xgboost.DMatrix(_NO_ROWS),
) -> None:
    """Constructs the matrix on all ranks; DataError on all of them where one cannot.

    attend: makes a matrix without rows in its place. Within the constructor the ranks agree on the
    columns (and on bins), and ranks whose rows are in order would wait there for a rank that has
    failed earlier. XGBoost checks the labels and weights of a DMatrix after that.
    """

    def make(_: object) -> list[Facts]:
        try:
            with blaming_the_lost():
                construct()
        except WorldError:
            raise
        except Exception:
            if ranks.size > 1 and not hasattr(matrix, "handle"):
                with suppress(xgboost.core.XGBoostError):
                    attend()
            raise
        return [of_columns(matrix)]

    together(ranks, "making a matrix", make, partial(compare, what="make matrices with"))


def _finite(rows: Any, missing: float | None) -> None:
    """DataError if a value is infinite, which XGBoost notices too late: while it makes the bins.

    Checks arrays, SciPy's matrices and tables; XGBoost checks other data itself.
    """
    if missing is not None and np.isinf(missing):
        return
    columns = [rows.iloc[:, at] for at in range(rows.shape[1])] if hasattr(rows, "iloc") else [rows]
    for column in columns:
        values = column.data if issparse(column) else column
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        if kind == "f" and np.isinf(np.asarray(values)).any():
            raise DataError("the rows have an infinite value.")
