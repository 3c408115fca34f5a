"""Categories of tables that every rank has a share of: whether they differ, and their union.

A library that trains on categories counts those of the table that it is given, so ranks whose
tables have different categories, or the same in another order, would give one number to different
things. Here the ranks' columns are compared, the categories of a column joined, and a table is
coded by them. pandas, Arrow and polars are not imported, only found where the script has them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from numbers import Number
from typing import Any

_PLAIN, _ORDERED = "category", "ordered category"


@dataclass(frozen=True)
class Column:
    """A column of one rank's table.

    form: "category", "ordered category", or nothing for numbers and all else. digest: stands for
    the categories, their order and their type.
    """

    name: str
    form: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Categories:
    """The categories of a column, as one rank has them."""

    form: str
    values: tuple[Any, ...]


Seen = Mapping[int, Sequence[Column] | None]
"""The columns of each rank's table; None of an array, which has no names."""


def table(data: Any) -> Any:
    """`data`, or a table of Arrow in the place of one of polars that has categories."""
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(data, (polars.DataFrame, polars.LazyFrame)):
        return data
    coded = (polars.Categorical, polars.Enum)
    if not any(isinstance(each, coded) for each in data.collect_schema().values()):
        return data
    return (data.collect() if isinstance(data, polars.LazyFrame) else data).to_arrow()


def columns(data: Any) -> list[Column] | None:
    """The columns of a table; None of what has no names, an array for example."""
    if _is(data, "pandas", "Series"):
        data = data.to_frame()
    if _is(data, "pandas", "DataFrame"):
        names = [str(name) for name in data.columns]
        forms = [_form_of_pandas(dtype) for dtype in data.dtypes]
    elif _is(data, "pyarrow", "Table"):
        names = list(data.column_names)
        forms = [_form_of_arrow(each) for each in data.schema.types]
    elif _is(data, "polars", "DataFrame") or _is(data, "polars", "LazyFrame"):
        return [Column(name) for name in data.collect_schema().names()]
    else:
        return None
    return [
        Column(name, form, _digest(data, at) if form else "")
        for at, (name, form) in enumerate(zip(names, forms, strict=True))
    ]


def different(seen: Seen, error: type[Exception]) -> list[int]:
    """The columns, by their places, whose categories are not the same on all ranks.

    Raises `error` where ranks have other columns, or a column is a category on some of them only.
    """
    found: set[int] = set()
    first: tuple[int, Sequence[Column]] | None = None
    for rank, each in seen.items():
        if each is None:
            continue
        first = first or (rank, each)
        if [column.name for column in each] != [column.name for column in first[1]]:
            raise error(_other_names(*first, rank, each))
        for at, (here, there) in enumerate(zip(first[1], each, strict=True)):
            if here.form != there.form:
                raise error(
                    f"column {here.name!r} is {_a(here.form)} on rank {first[0]} and "
                    f"{_a(there.form)} on rank {rank}. Give it the same type on all ranks."
                )
            if here.digest != there.digest:
                found.add(at)
    for rank, each in seen.items():
        for column in first[1] if first is not None and each is None else ():
            if column.form:
                assert first is not None
                raise error(
                    f"column {column.name!r} is {_a(column.form)} on rank {first[0]}, but rank "
                    f"{rank} has an array without names. Give the same kind of table on all ranks."
                )
    return sorted(found)


def categories(data: Any, at: int) -> Categories:
    """The categories of the column at that place."""
    if _is(data, "pandas", "Series"):
        data = data.to_frame()
    if _is(data, "pandas", "DataFrame"):
        dtype = data.dtypes.iloc[at]
        return Categories(_form_of_pandas(dtype), tuple(dtype.categories.tolist()))
    column = data.column(at).unify_dictionaries()
    values = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    return Categories(_form_of_arrow(column.type), tuple(values))


def union(name: str, seen: Mapping[int, Categories], error: type[Exception]) -> list[Any]:
    """The categories of all ranks, in one order: sorted, as they would be in a single process.

    Ordered ones keep the order that they have. Raises `error` where the ranks' orders contradict
    each other or leave one open, and where the categories are of several types.
    """
    kinds: dict[str, int] = {}
    for rank, each in seen.items():
        for value in each.values:
            kinds.setdefault(_kind(value), rank)
    if len(kinds) > 1:
        (here, first), (there, other) = list(kinds.items())[:2]
        raise error(
            f"column {name!r}: categories are of type {here} on rank {first} and of type {there} "
            f"on rank {other}. Give them the same type on all ranks."
        )
    every = list(dict.fromkeys(value for each in seen.values() for value in each.values))
    if any(isinstance(value, float) for value in every):
        every = [float(value) for value in every]
    if any(each.form == _ORDERED for each in seen.values()):
        return _in_order(name, seen, every, error)
    try:
        return sorted(every)
    except TypeError:  # without an order of their own
        return every


def recoded(data: Any, unions: Mapping[int, Sequence[Any]]) -> Any:
    """The table with these categories in these columns; `data` itself stays as it is."""
    if not unions:
        return data
    if _is(data, "pandas", "DataFrame"):
        data = data.copy(deep=False)
        for at, values in unions.items():
            data.isetitem(at, data.iloc[:, at].cat.set_categories(list(values)))
        return data
    pyarrow = sys.modules["pyarrow"]
    from pyarrow.compute import index_in

    for at, values in unions.items():
        field, kind = data.field(at), data.schema.types[at]
        known = pyarrow.array(values, kind.value_type)
        codes = index_in(data.column(at).cast(kind.value_type), value_set=known)
        coded = pyarrow.DictionaryArray.from_arrays(
            codes.combine_chunks(), known, ordered=kind.ordered
        )
        data = data.set_column(at, field.with_type(coded.type), coded)
    return data


def explain(name: str, seen: Mapping[int, Categories]) -> str:
    """The first two ranks whose categories of a column differ, in words."""
    (first, here), *others = seen.items()
    rank, there = next(((rank, each) for rank, each in others if each != here), others[-1])
    return (
        f"column {name!r} has the categories {_short(here.values)} on rank {first} and "
        f"{_short(there.values)} on rank {rank}"
    )


@cache
def tell(name: str, count: int) -> None:
    """Print, once, that the ranks' categories were joined to so many; for rank 0."""
    print(
        f"shanty: column {name!r} has different categories on the ranks; all of them use the union "
        f"of {count}.",
        file=sys.stderr,
    )


# ---- within ------------------------------------------------------------------------------------


def _is(data: object, module: str, name: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(data, found)


def _form_of_pandas(dtype: Any) -> str:
    if not isinstance(dtype, sys.modules["pandas"].CategoricalDtype):
        return ""
    return _ORDERED if dtype.ordered else _PLAIN


def _form_of_arrow(kind: Any) -> str:
    if not isinstance(kind, sys.modules["pyarrow"].DictionaryType):
        return ""
    return _ORDERED if kind.ordered else _PLAIN


def _digest(data: Any, at: int) -> str:
    if _is(data, "pandas", "DataFrame"):
        kind = str(data.dtypes.iloc[at].categories.dtype)
    else:
        kind = str(data.schema.types[at].value_type)
    spelled = repr((kind, categories(data, at).values)).encode(errors="surrogatepass")
    return hashlib.blake2b(spelled, digest_size=16).hexdigest()


def _kind(value: object) -> str:
    name = type(value).__name__
    return "number" if isinstance(value, Number) and name != "bool" else name


def _in_order(
    name: str, seen: Mapping[int, Categories], every: Sequence[Any], error: type[Exception]
) -> list[Any]:
    """The only order that keeps that of each rank."""
    graph: TopologicalSorter[Any] = TopologicalSorter(dict.fromkeys(every, ()))
    for each in seen.values():
        for before, after in pairwise(each.values):
            graph.add(after, before)
    advice = "Give the column the same ordered categories on all ranks."
    try:
        graph.prepare()
    except CycleError:
        raise error(
            f"{explain(name, seen)}: their orders contradict each other. {advice}"
        ) from None
    found: list[Any] = []
    while graph.is_active():
        ready = graph.get_ready()
        if len(ready) > 1:
            raise error(
                f"{explain(name, seen)}: the order of {ready[0]!r} and {ready[1]!r} is open. "
                f"{advice}"
            )
        found.extend(ready)
        graph.done(*ready)
    return found


def _other_names(first: int, here: Sequence[Column], rank: int, there: Sequence[Column]) -> str:
    mine, theirs = [each.name for each in here], [each.name for each in there]
    order = " in another order" if sorted(mine) == sorted(theirs) else ""
    if len(mine) != len(theirs):
        return (
            f"the ranks have other columns: {len(mine)} on rank {first} and {len(theirs)} on rank "
            f"{rank}"
        )
    at = next(at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
    return (
        f"the ranks have different feature names{order}: column {at} is {mine[at]!r} on rank "
        f"{first} and {theirs[at]!r} on rank {rank}. Give all ranks the same columns in one order."
    )


def _a(form: str) -> str:
    return {"": "not a category", _PLAIN: "a category", _ORDERED: "an ordered category"}[form]


def _short(values: Sequence[Any]) -> str:
    shown = ", ".join(map(str, values[:5])) or "none"
    return f"{shown}, … ({len(values)})" if len(values) > 5 else shown
