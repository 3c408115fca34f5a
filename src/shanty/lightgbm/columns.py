"""Gives the tables of all ranks the same categories."""

from __future__ import annotations

from typing import Any

from shanty import _categories
from shanty.lightgbm import network
from shanty.lightgbm.errors import DataError


def joined(data: Any) -> Any:
    """`data`, coded by the categories of all ranks' tables; `data` itself stays as it is.

    All ranks call it. DataError, on all of them, where columns have other names or types, or their
    categories cannot be joined.
    """
    if network.size() == 1:
        return data
    own = _categories.table(data)
    seen = network.gather((_categories.columns(own), hasattr(own, "schema")))
    for rank, (columns, is_arrow) in enumerate(seen):
        for column in columns if is_arrow and columns is not None else ():
            if column.form:  # LightGBM would abort the process
                raise DataError(
                    f"column {column.name!r} is an Arrow dictionary on rank {rank}, which LightGBM "
                    "does not take. Give a pandas table: table.to_pandas()"
                )
    differ = _categories.different(dict(enumerate(each for each, _ in seen)), DataError)
    if not differ:
        return data
    mine = {at: _categories.categories(own, at) for at in differ}
    every = network.gather(mine)
    names = [column.name for column in seen[0][0] or ()]
    unions = {
        at: _categories.union(
            names[at], {rank: each[at] for rank, each in enumerate(every)}, DataError
        )
        for at in differ
    }
    for at, values in unions.items() if network.rank() == 0 else ():
        _categories.tell(names[at], len(values))
    return _categories.recoded(own, unions)
