"""Reads this rank's share of the files that a URI names, in agreement with all other ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost import groups
from shanty.xgboost.communication import Communicator
from shanty.xgboost.consensus import Consensus, together
from shanty.xgboost.errors import DataError
from shanty.xgboost.npz import Arrays
from shanty.xgboost.parquet import Table
from shanty.xgboost.share import Share, Summary, agree
from shanty.xgboost.sources import Source, parse, side_files
from shanty.xgboost.text.csv import read_csv
from shanty.xgboost.text.files import measure
from shanty.xgboost.text.libsvm import read_libsvm
from shanty.xgboost.text.rows import Rows
from shanty.xgboost.text.side_files import Groups, count_rows, groups_of_share, numbers

COLUMNS = ("label", "weight", "qid")  # what may be the name of a column of Parquet, or of an array


@dataclass(frozen=True)
class Files:
    """The files of a source as one rank sees them, before it reads a row."""

    source: Source
    bytes: tuple[int, ...]
    sides: dict[str, int]  # bytes of each side file, by its suffix
    content: tuple[int, ...]  # of the files rank, rank + size, …: bytes once unpacked


@dataclass(frozen=True)
class Loaded:
    """This rank's share, and what all ranks agree on."""

    share: Share
    agreed: Summary
    first: int  # number of the share's first row among all
    ranks: int  # among which the rows are shared out
    given: dict[str, NDArray[np.generic]]  # weight, group, base_margin: of files beside it


def load(ranks: Communicator, data: object, columns: dict[str, str], label: bool) -> Loaded:
    """Reads this rank's share of the files that `data` names. All ranks call it.

    columns: for Parquet and npz, the names of the label, the weight and the qid. label: whether the
    caller passes labels. Raises the same DataError on all ranks for anything that is wrong.
    """
    what = f"loading {data}"
    seen: list[Files] = []  # by this rank: another one may have the same files in other folders

    def look(consensus: Consensus) -> Files:
        seen.append(_look(ranks, data, columns, consensus.go_on))
        return seen[0]

    sizes = together(ranks, what, look, _same_files)
    files = seen[0]
    source = files.source
    beside = _Beside(ranks, what, files, sizes)
    made: list[Share] = []
    ids = np.empty(0, np.uint64)  # of this rank's groups, where none may come back later

    def read(consensus: Consensus) -> Summary:
        nonlocal ids
        share = Share()
        made.append(share)
        rows, known = _rows(ranks, source, sizes, beside)
        for piece in rows:
            share.add(piece)
            consensus.go_on()
        summary = share.summary(*known)
        beside.check(summary)
        qids = share.meta("qid")
        if qids is None or source.format not in ("parquet", "npz"):
            return summary
        ids = groups.ids(qids)
        groups.refuse_twice(ids, str(source))
        return replace(summary, groups=(int(ids.min()), int(ids.max())))

    def combine(summaries: list[Summary]) -> tuple[Summary, list[int], bool]:
        try:
            agreed = agree(summaries, label)
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
        mixed = groups.overlap(each.groups for each in summaries)
        return agreed, [each.rows for each in summaries], mixed

    def compare(found: list[NDArray[np.uint64]]) -> None:
        groups.refuse_twice(np.concatenate(found), str(source))

    try:
        agreed, rows, mixed = together(ranks, what, read, combine)
        first = sum(rows[: ranks.rank])
        if mixed:
            together(ranks, what, lambda _: ids, compare)
        own = rows[ranks.rank]
        together(ranks, what, partial(beside.take, own, first, agreed.rows), lambda _: None)
    except Exception:
        for share in made:
            share.close()
        raise
    return Loaded(made[0], agreed, first, ranks.size, beside.given)


def _look(
    ranks: Communicator, data: object, columns: dict[str, str], go_on: Callable[[], None]
) -> Files:
    source = parse(data)
    if columns and source.format in ("libsvm", "csv"):
        raise DataError(
            f"{source}: {', '.join(columns)}= names columns, but a CSV file has no column names. "
            "Give ?label_column=0, or pass an array."
            if source.format == "csv"
            else f"{source}: {', '.join(columns)}= names columns, but a LibSVM file has none."
        )
    if source.cache:
        raise DataError(
            f"{source}#{source.cache}: training from a cache on disk (external memory) is not "
            "supported. Leave out the # and what follows; on more ranks each share is smaller."
        )
    if source.format == "buffer":
        raise DataError(
            f"{source}: a file of DMatrix.save_binary cannot be shared out. Write the rows as "
            "Parquet, npz, CSV or LibSVM."
        )
    source = replace(source, options={**source.options, **columns})
    size = tuple(Path(file).stat().st_size for file in source.files)
    sides = {suffix: Path(file).stat().st_size for suffix, file in side_files(source).items()}
    content: tuple[int, ...] = ()
    if source.format in ("libsvm", "csv"):
        content = tuple(measure(source.files[ranks.rank :: ranks.size], go_on))
    return Files(source, size, sides, content)


def _same_files(seen: list[Files]) -> list[int]:
    """The bytes of each file once unpacked; DataError where the ranks see different files."""
    first = seen[0]
    for rank, each in enumerate(seen):
        if _same(each) != _same(first):
            raise DataError(
                f"The ranks see different files: rank 0 {_spell(first)}, rank {rank} "
                f"{_spell(each)}. All ranks must name the same files, of which each rank reads its "
                "share; hosts without a shared folder need equal copies."
            )
    sizes = [0] * len(first.bytes)
    for rank, each in enumerate(seen):
        sizes[rank :: len(seen)] = each.content or [0] * len(sizes[rank :: len(seen)])
    return sizes


def _same(files: Files) -> tuple[object, ...]:
    """The facts that must be equal on all ranks. Folders may differ from host to host."""
    names = [Path(file).name for file in files.source.files]
    return names, replace(files.source, files=()), files.bytes, files.sides


def _spell(files: Files) -> str:
    sides = f" with {', '.join(files.sides)}" if files.sides else ""
    return f"{files.source} ({sum(files.bytes)} bytes{sides})"


_Known = tuple[int, Sequence[str], Sequence[str]]  # the least number of columns; names, types


def _rows(
    ranks: Communicator, source: Source, sizes: Sequence[int], beside: _Beside
) -> tuple[Iterator[Rows], _Known]:
    columns = {name: word for name, word in source.options.items() if name in COLUMNS}
    if source.format == "parquet":
        table = Table(source.files, columns)
        known = len(table.names), table.names, table.types
        return table.share(ranks.rank, ranks.size), known
    if source.format == "npz":
        arrays = Arrays(source.files, columns)
        return arrays.share(ranks.rank, ranks.size), (arrays.columns, (), ())
    if source.format == "libsvm":
        read = partial(read_libsvm, indexing_mode=source.number("indexing_mode", 0))
    else:
        read = partial(
            read_csv,
            label_column=source.number("label_column", -1),
            weight_column=source.number("weight_column", -1),
            delimiter=source.options.get("delimiter", ","),
        )
    rows = read(
        source.files, ranks.rank, ranks.size, sizes=sizes, skip=beside.skip, extra=beside.extra
    )
    return rows, (0, (), ())


class _Beside:
    """The files `.weight`, `.group` and `.base_margin` beside a text file."""

    def __init__(self, ranks: Communicator, what: str, files: Files, sizes: Sequence[int]) -> None:
        source, sides = files.source, files.sides
        self.given: dict[str, NDArray[np.generic]] = {}
        self.skip = self.extra = 0  # rows, for the readers of lines
        self._sides = sides
        self._file = source.files[0]
        self._first_group = self._groups = 0  # groups before this rank's, and of all ranks
        if sides and ranks.rank == 0:
            _say(f"{self._file}: files beside it are used: {', '.join(sides)}")
        if ".group" not in sides:
            return
        comment = "#" if source.format == "libsvm" else None
        count = together(
            ranks,
            what,
            lambda consensus: count_rows(
                source.files,
                ranks.rank,
                ranks.size,
                comment=comment,
                sizes=sizes,
                between=consensus.go_on,
            ),
            lambda counts: counts,
        )
        start = sum(count[: ranks.rank])

        own: list[Groups] = []

        def find(consensus: Consensus) -> int:
            found = groups_of_share(
                self._file + ".group", start, count[ranks.rank], sum(count), consensus.go_on
            )
            own.append(found)
            return len(found.group_sizes)

        counts = together(ranks, what, find, lambda each: each)
        self._first_group, self._groups = sum(counts[: ranks.rank]), sum(counts)
        self.skip, self.extra, self.given["group"] = own[0]

    def check(self, summary: Summary) -> None:
        """DataError if the lines and the files contradict each other."""
        for suffix, name in ((".weight", "weight"), (".group", "qid")):
            if suffix in self._sides and name in summary.given:
                raise DataError(
                    f"{self._file}: its lines have a {name}, and {self._file}{suffix} exists as "
                    "well. Remove one of the two."
                )
        if ".weight" in self._sides and "qid" in summary.given:
            raise DataError(
                f"{self._file}.weight: weights of groups are not supported together with qid. "
                "Write the sizes of the groups to a file .group and leave qid out."
            )
        if ".group" in self._sides and sum(self.given["group"]) != summary.rows:
            raise DataError(
                f"{self._file}.group has {sum(self.given['group'])} rows for this rank's share, "
                f"but the share has {summary.rows}."
            )

    def take(self, rows: int, first: int, total: int, consensus: Consensus) -> None:
        """Reads what belongs to a share's rows, of which `first` is the first, or to its groups."""
        for suffix, name in ((".weight", "weight"), (".base_margin", "base_margin")):
            if suffix not in self._sides:
                continue
            part = first, rows, total
            if name == "weight" and "group" in self.given:
                part = self._first_group, len(self.given["group"]), self._groups
            self.given[name] = numbers(self._file + suffix, *part, consensus.go_on)


@cache
def _say(text: str) -> None:
    """Prints something, once."""
    print(f"shanty.xgboost: {text}", file=sys.stderr)
