"""XGBoost's matrices, made of this rank's share of some files.

What is no name of a file is passed on to XGBoost: it is this rank's share as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np

from shanty.xgboost.errors import DataError
from shanty.xgboost.exchange import together
from shanty.xgboost.installed import xgboost
from shanty.xgboost.loading import COLUMNS, Loaded, load
from shanty.xgboost.sources import is_source
from shanty.xgboost.world import World, blaming_the_lost, current

_OF_ROWS = (
    *("label", "weight", "qid", "base_margin"),
    *("label_lower_bound", "label_upper_bound"),
)


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
        world = current()
        shared = share(world, data, label, options, _in_least_form)
        with shared as (rows, arguments), blaming_the_lost():
            super().__init__(rows, **arguments)
        compare(world, self)


class QuantileDMatrix(xgboost.QuantileDMatrix):  # type: ignore[misc]
    """XGBoost's QuantileDMatrix of this rank's rows; as DMatrix here.

    The bins are those of all ranks' rows.
    """

    def __init__(self, data: Any, label: Any = None, **options: Any) -> None:
        world = current()
        with share(world, data, label, options) as (rows, arguments), blaming_the_lost():
            super().__init__(rows, **arguments)
        compare(world, self)


_Way = Callable[[Loaded, int, dict[str, Any]], AbstractContextManager[Any]]


def _as_arrays(loaded: Loaded, width: int, _: dict[str, Any]) -> AbstractContextManager[Any]:
    return loaded.share.matrix(width, bool(loaded.agreed.dense))


def _in_least_form(
    loaded: Loaded, width: int, arguments: dict[str, Any]
) -> AbstractContextManager[Any]:
    missing = arguments.get("missing")
    if loaded.agreed.dense or not (missing is None or np.isnan(missing)):
        return _as_arrays(loaded, width, arguments)
    return loaded.share.form(width)


@contextmanager
def share(
    world: World, data: Any, label: Any, options: dict[str, Any], way: _Way = _as_arrays
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The rows as XGBoost takes them and the arguments beside them, while a matrix is made."""
    if not is_source(data):
        yield data, {"label": label, **options}
        return
    own = {"label": label, **options}
    columns = {name: own.pop(name) for name in COLUMNS if isinstance(own.get(name), str)}
    loaded = load(world, data, columns, own.get("label") is not None)
    try:
        arguments: dict[str, Any] = {}
        work = partial(_arguments, loaded, own, arguments)
        together(world, f"loading {data}", work, lambda _: None)
        names = arguments.get("feature_names")
        width = max(loaded.agreed.columns, len(names) if names is not None else 0)
        with way(loaded, width, arguments) as rows:
            yield rows, arguments
    finally:
        loaded.share.close()


def _arguments(loaded: Loaded, own: dict[str, Any], arguments: dict[str, Any], _: object) -> None:
    """Put together what XGBoost is to know beside the rows: of the files, and of the caller."""
    for name in loaded.agreed.given:
        found = loaded.share.meta(name)
        arguments[name] = found if found is not None else np.empty(0, np.float32)
    arguments.update(loaded.given)
    if loaded.agreed.names:
        arguments["feature_names"] = list(loaded.agreed.names)
        arguments["feature_types"] = list(loaded.agreed.types)
    for name, value in own.items():
        if value is None:
            continue
        if name in arguments and name in _OF_ROWS:
            raise DataError(f"{name} is given twice: in the files and as {name}=.")
        arguments[name] = _own_rows(loaded, name, value) if name in _OF_ROWS else value


def _own_rows(loaded: Loaded, name: str, value: Any) -> Any:
    """Of one value for each row of all files, those of this rank's rows."""
    count, rows = len(value), loaded.share.rows
    if count == rows and rows != loaded.agreed.rows:
        return value
    if count != loaded.agreed.rows:
        raise DataError(
            f"{name}= has {count} values, but there are {loaded.agreed.rows} rows, {rows} of them "
            "this rank's."
        )
    taken = slice(loaded.first, loaded.first + rows)
    return value.iloc[taken] if hasattr(value, "iloc") else value[taken]


def compare(world: World, matrix: Any) -> None:
    """DataError where the ranks' matrices are not of the same columns."""
    if world.size == 1:
        return
    own = (matrix.num_col(), matrix.feature_names, matrix.feature_types)

    def judge(seen: list[tuple[int, Any, Any]]) -> None:
        for rank, each in enumerate(seen):
            for what, here, there in zip(
                ("columns", "feature names", "feature types"), seen[0], each, strict=True
            ):
                if here != there:
                    raise DataError(
                        f"The ranks' matrices have different {what}: rank 0 {_short(here)}, "
                        f"rank {rank} {_short(there)}."
                    )

    together(world, "making a matrix", lambda _: own, judge)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value[:5])) + (", …" if len(value) > 5 else "")
    return str(value)
