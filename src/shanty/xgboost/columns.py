"""Gives the tables of all ranks the same meaning: one set of categories, the same columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shanty import _categories
from shanty._categories import Categories, Column
from shanty.xgboost.agreement import compare
from shanty.xgboost.communication import Communicator
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import DataError
from shanty.xgboost.installed import xgboost

_KEEPS_CATEGORIES = tuple(int(part) for part in xgboost.__version__.split(".")[:2]) >= (3, 1)
# What all ranks must give alike, and XGBoost's defaults.
_ALIKE = {"max_bin": 256, "missing": float("nan"), "enable_categorical": False}


class _Facts(NamedTuple):
    """What the other ranks have to know about a rank's data."""

    rows: int | None  # None: not known before XGBoost has read it
    width: int | None
    columns: list[Column] | None
    options: dict[str, str]
    fixed: str  # why its categories stay as they are


class _Plan(NamedTuple):
    """What all ranks do next."""

    differ: dict[int, str]  # columns whose categories are joined, by their places
    fixed: str
    first: int  # a rank that has rows
    others: list[int]  # ranks without rows, which take its columns


def shared(ranks: Communicator, data: Any, options: Mapping[str, Any]) -> Any:
    """`data`, so that all ranks' mean the same; `data` itself stays as it is. All ranks call it.

    Columns whose categories differ get the union of all ranks'. A rank without rows gets the
    columns of a rank with rows. options: of the matrix; some of them must be the same.
    DataError, on all ranks, where columns have other names or types, or their categories cannot be
    joined.
    """
    if ranks.size == 1:
        return data
    what = "making a matrix"
    data = _categories.table(data)
    is_iterator = isinstance(data, xgboost.DataIter)
    batch = data

    def look(_: object) -> _Facts:
        nonlocal batch
        fixed = ""
        if is_iterator:
            batch = _first_batch(data)
            fixed = "Those of an iterator's batches stay as they are"
        elif type(data).__name__ == "Series":
            fixed = "Those of a column without a table stay as they are"
        elif not _KEEPS_CATEGORIES:
            fixed = f"XGBoost {xgboost.__version__} does not keep them with the model (3.1 does)"
        shape = getattr(batch, "shape", None)
        rows, width = shape if shape is not None and len(shape) == 2 else (None, None)
        given = {name: value for name, value in options.items() if value is not None}
        alike = {name: repr(given.get(name, usual)) for name, usual in _ALIKE.items()}
        rows = 0 if is_iterator and batch is None else rows
        return _Facts(rows, width, _categories.columns(batch), alike, fixed)

    def send(_: object) -> dict[int, Categories]:
        there = ranks.rank not in plan.others
        return {at: _categories.categories(batch, at) for at in plan.differ if there}

    plan = together(ranks, what, look, _plan)
    if is_iterator:
        _compare_batches(data, _categories.columns(batch))
    if plan.differ:
        unions = together(ranks, what, send, lambda each: _unions(plan, each))
        if ranks.rank not in plan.others:
            data = batch = _categories.recoded(data, unions)
    if plan.others:
        first = ranks.rank == plan.first
        chosen = together(
            ranks, what, lambda _: first and _no_rows(batch), lambda each: each[plan.first]
        )
        if ranks.rank in plan.others and chosen is not None:
            return _NoRows(chosen) if is_iterator else chosen
    return data


def _plan(seen: list[_Facts]) -> _Plan:
    there = {rank: each for rank, each in enumerate(seen) if each.rows != 0}
    if not there:
        return _Plan({}, "", 0, [])
    first, facts = next(iter(there.items()))
    options = [[each.options if each.rows != 0 else {}] for each in seen]
    compare(options, "make matrices with")
    without = [rank for rank, each in enumerate(seen) if each.rows == 0]
    coded = [column.name for column in facts.columns or () if column.form]
    if without and coded and _KEEPS_CATEGORIES:
        raise DataError(
            f"rank {without[0]} has no rows, and XGBoost needs some on each rank of a table with "
            f"categories (column {coded[0]!r}). Give each rank some, or take fewer ranks."
        )
    differ = _categories.different({rank: each.columns for rank, each in there.items()}, DataError)
    names = {at: (facts.columns or [])[at].name for at in differ}
    fixed = next((each.fixed for each in there.values() if each.fixed), "")
    others = [rank for rank in without if differ or seen[rank][1:3] != facts[1:3]]
    return _Plan(names, fixed, first, others)


def _unions(plan: _Plan, seen: list[dict[int, Categories]]) -> dict[int, list[Any]]:
    """The categories of all ranks, for each column where they differ."""
    found = {}
    for at, name in plan.differ.items():
        known = {rank: each[at] for rank, each in enumerate(seen) if at in each}
        if plan.fixed:
            raise DataError(
                f"{_categories.explain(name, known)}. {plan.fixed}: give the column the same "
                "categories, in one order, on all ranks."
            )
        found[at] = _categories.union(name, known, DataError)
        _categories.tell(name, len(found[at]))
    return found


# ---- ranks without rows, and iterators ---------------------------------------------------------


def _no_rows(data: Any) -> Any:
    """The same columns without rows; None if the columns are unknown."""
    if hasattr(data, "iloc"):
        return data.iloc[:0]
    if hasattr(data, "to_pandas"):  # of Arrow: XGBoost takes no table without rows
        return data.slice(0, 0).to_pandas()
    return data[:0] if len(getattr(data, "shape", ())) == 2 else None


def _first_batch(iterator: Any) -> Any:
    """The rows of an iterator's first batch; None where it has no batch."""
    found: list[Any] = []
    iterator.reset()
    iterator.next(lambda *, data, **_: found.append(data))
    iterator.reset()
    return _categories.table(found[0]) if found else None


def _compare_batches(iterator: Any, first: list[Column] | None) -> None:
    """Make the iterator raise DataError for a batch with other categories than the first batch.

    XGBoost assumes that the codes of all batches refer to the same categories.
    """
    if not any(column.form for column in first or ()) or hasattr(iterator.next, "compares"):
        return
    of_the_caller = iterator.next

    def advance(input_data: Callable[..., Any]) -> Any:
        def compared(*, data: Any, **others: Any) -> Any:
            columns = _categories.columns(_categories.table(data))
            for here, there in zip(first or (), columns or (), strict=False):
                if (here.form, here.digest) != (there.form, there.digest):
                    raise DataError(
                        f"The categories of column {here.name!r} differ between an iterator's "
                        "batches. Give it the same ones in all batches, in one order."
                    )
            return input_data(data=data, **others)

        return of_the_caller(compared)

    advance.compares = True  # type: ignore[attr-defined]
    iterator.next = advance


class _NoRows(xgboost.DataIter):  # type: ignore[misc]
    """One batch without rows, for a rank whose iterator has none: XGBoost needs at least one."""

    def __init__(self, rows: Any) -> None:
        self._rows, self._done = rows, False
        super().__init__()

    def reset(self) -> None:
        """Begins again."""
        self._done = False

    def next(self, input_data: Callable[..., None]) -> bool:
        """Gives the batch, once."""
        if self._done:
            return False
        self._done = True
        input_data(data=self._rows, label=[])
        return True
