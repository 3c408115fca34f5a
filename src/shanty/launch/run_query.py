"""Asks the index for one page of runs: filtered, searched, sorted, with the values to filter by.

All of it is SQL over the table that `index` keeps, so no run is looked at for it.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, field
from typing import Any

# What a page may be sorted by. A run that goes on has taken the time until now.
SORTS = {
    "created": "created",
    "name": "name",
    "state": "state",
    "took": "COALESCE(took, :now - created)",
    "ranks": "ranks",
}
_FACETS = {"state": "states", "tag": "tags", "target": "targets", "machine_type": "machine_types"}


@dataclass(frozen=True, slots=True)
class Query:
    """Says which runs are wanted.

    Every word of `search` has to be in the run's id, name, command, tags, hosts or failure. A
    run matches a filter by any of its values, but `tag` by all of them. `since` and `until` are
    times of creation, in seconds since 1970. A run without an owner is `account`'s; with `only_of`
    set, no other's runs are counted or returned.
    """

    search: str = ""
    state: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    machine_type: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    sort: str = "created"
    descending: bool = True
    offset: int = 0
    limit: int = 100
    account: str = ""
    only_of: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Holds the ids of one page in their order, how many match in all, and counts to choose by."""

    ids: list[str]
    total: int
    facets: dict[str, dict[str, int]] = field(default_factory=dict)


def find(index: sqlite3.Connection, query: Query) -> Found:
    """Return what matches. The counts of a filter are those without the filter itself."""
    clauses, values = _clauses(query)
    where = _where(clauses)
    (total,) = index.execute(f"SELECT COUNT(*) FROM runs {where}", values).fetchone()
    way = "DESC" if query.descending else "ASC"
    rows = index.execute(
        f"SELECT id FROM runs {where} ORDER BY {SORTS[query.sort]} {way}, id {way} "
        "LIMIT :limit OFFSET :offset",
        {**values, "limit": query.limit, "offset": query.offset},
    )
    ids = [row[0] for row in rows]
    return Found(ids, total, {title: _facet(index, query, key) for key, title in _FACETS.items()})


def _facet(index: sqlite3.Connection, query: Query, key: str) -> dict[str, int]:
    clauses, values = _clauses(query, "" if key == "tag" else key)
    column, source = (key, "runs")
    if key == "tag":
        column, source = "each.value", "runs, json_each(runs.tags) AS each"
    elif key == "machine_type":
        clauses = {**clauses, "": "machine_type <> ''"}
    rows = index.execute(
        f"SELECT {column}, COUNT(*) AS n FROM {source} {_where(clauses)} "
        "GROUP BY 1 ORDER BY n DESC LIMIT 200",
        values,
    )
    return {str(name): count for name, count in rows}


def _where(clauses: dict[str, str]) -> str:
    return f"WHERE {' AND '.join(clauses.values())}" if clauses else ""


def _clauses(query: Query, without: str = "") -> tuple[dict[str, str], dict[str, Any]]:
    """Return the conditions by the filter that they are of, and the values that they name."""
    clauses: dict[str, str] = {}
    values: dict[str, Any] = {"now": time.time(), "account": query.account}
    for number, word in enumerate(query.search.lower().split()):
        clauses[f"search {number}"] = f"instr(text, :word{number}) > 0"
        values[f"word{number}"] = word
    for key, column in (
        ("state", "state"),
        ("target", "target"),
        ("machine_type", "machine_type"),
        ("owner", "COALESCE(NULLIF(owner, ''), :account)"),
    ):
        wanted = getattr(query, key)
        if wanted and key != without:
            names = {f"{key}{number}": value for number, value in enumerate(wanted)}
            clauses[key] = f"{column} IN ({', '.join(':' + name for name in names)})"
            values.update(names)
    for number, tag in enumerate(query.tag):
        one = f"EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE value = :tag{number})"
        clauses[f"tag {number}"] = one
        values[f"tag{number}"] = tag
    for key, sign in (("since", ">="), ("until", "<=")):
        if getattr(query, key) is not None:
            clauses[key] = f"created {sign} :{key}"
            values[key] = getattr(query, key)
    if query.only_of is not None:
        clauses["only_of"] = "COALESCE(NULLIF(owner, ''), :account) = :only_of"
        values["only_of"] = query.only_of
    return clauses, values
