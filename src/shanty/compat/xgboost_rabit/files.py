"""Makes `xgb.DMatrix` of a file what it was with rabit: from init to finalize, this rank's share.

A file that all ranks load is shared out among them. But many scripts have split their data
themselves and load `"train.%d" % rank`: such a file belongs to one rank and is not split again. So
the ranks compare the names. If the names differ, the files may still be the same, as shown by their
last names and contents: hosts may have them in different folders, such as `~/data`. shanty.xgboost
reads the files.

Each rank made a matrix of arrays in memory by itself, and one rank alone could make one to predict.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import xgboost
from xgboost import collective

from shanty._categories import columns
from shanty.compat.xgboost_rabit.calls import Arguments, named, say, tell
from shanty.xgboost.communication import Communicator, current
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import DataError
from shanty.xgboost.matrix import made_by_all, share
from shanty.xgboost.sources import Source, parse_old

if TYPE_CHECKING:
    from mpi4py import MPI

# What could come by position after data and label: from XGBoost 1.3 on, and before.
NEW = (
    *("weight", "base_margin", "missing", "silent", "feature_names", "feature_types"),
    *("nthread", "group", "qid"),
)
_LOOKED_AT = 65536  # bytes at the beginning and at the end of a file; of many files, of all of them
_LEAST = 4096
OLD = ("missing", "weight", "silent", "feature_names", "feature_types", "nthread")


def initialise(original: Callable[..., None]) -> Callable[..., None]:
    """`DMatrix.__init__`, with names of files and arguments by position."""

    @functools.wraps(original)
    def __init__(  # noqa: N807
        self: Any, data: Any, label: Any = None, *values: Any, **names: Any
    ) -> None:
        options = named(_order(values), values, names, "DMatrix")
        if sys._getframe(1).f_globals.get("__name__", "").startswith("shanty."):  # how it loads
            original(self, data, label, **options)
        elif isinstance(data, (str, os.PathLike)):
            _load(original, self, os.fspath(data), label, options)
        elif _of_all_ranks(data, label):
            original(self, data, label, **options)
        else:
            _alone(functools.partial(original, self, data, label, **options))
            self.shanty_columns = columns(data)  # which are compared before a training

    return __init__


def _order(values: Sequence[Any]) -> Sequence[str]:
    """The names of arguments by position. Of old the first was `missing`, the third `silent`."""
    if values and np.isscalar(values[0]):
        return OLD
    third = values[2] if len(values) > 2 else None
    old = values and values[0] is None and (third is None or isinstance(third, bool))
    return OLD if old else NEW


def _of_all_ranks(data: Any, label: Any) -> bool:
    """Returns whether all ranks make the matrix together.

    XGBoost itself agrees on the width of sparse rows with labels. An iterator may ask for its rank.
    A handle is an existing matrix, from `DMatrix.slice`.
    """
    if data is None or isinstance(data, (xgboost.DataIter, ctypes.c_void_p)):
        return True
    sparse = sys.modules.get("scipy.sparse")
    return label is not None and sparse is not None and bool(sparse.issparse(data))


def _alone(call: Callable[[], None]) -> None:
    """Calls something in another thread, in which the ranks are not joined.

    Otherwise all ranks would have to make each matrix together. Training compares the matrices.
    """
    if collective.get_world_size() == 1:
        call()
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()


def _load(
    original: Callable[..., None], matrix: Any, uri: str, label: Any, options: Arguments
) -> None:
    """Makes `matrix` of this rank's share of `uri`, all of it where the rank is alone with it."""
    ranks = current()
    what = f"loading {uri}"
    name, _, cache = uri.partition("#")
    if cache:
        tell([f"#{cache} is left out: rows are kept in memory"])
    data = parse_old(name)
    paths = data.files if isinstance(data, Source) else ()
    first = together(ranks, what, lambda _: claim(uri, paths), parties)
    if ranks.rank == 0 and any(first):
        say(_not_shared(uri, first))
    with ExitStack() as stack:
        if not any(first):
            rows, arguments = stack.enter_context(share(ranks, data, label, options))
        else:
            assert ranks.mpi is not None
            comm = cast("MPI.Intracomm", ranks.mpi.Split(first[ranks.rank], ranks.rank))
            made: list[tuple[Any, Arguments]] = []

            def read(_: object) -> None:
                made.append(stack.enter_context(share(Communicator(comm), data, label, options)))

            together(ranks, what, read, lambda _: None)
            comm.Free()
            ((rows, arguments),) = made
        made_by_all(ranks, matrix, lambda: original(matrix, rows, **arguments))


def _not_shared(uri: str, first: Sequence[int]) -> str:
    others = [str(rank) for rank, party in enumerate(first) if rank and not party]
    if len(set(first)) == len(first):
        return f"{uri} is read by rank 0 only: each rank reads a file of its own"
    whose = f"shared with rank {', '.join(others)} only" if others else "read by rank 0 only"
    return f"{uri} is {whose}: the other ranks read other files"


class Claim(NamedTuple):
    """The files that a rank is about to load."""

    name: str  # as the script has it
    content: str  # equal for files with the same content; "" if it is unknown
    files: str = ""  # the last names of the files; "" if they are unknown


def claim(name: str, files: Sequence[str]) -> Claim:
    """The claim on `files`, which the script calls `name`; they may be missing."""
    length = max(_LEAST, _LOOKED_AT // max(1, len(files)))
    total, digest = 0, hashlib.sha256()
    try:
        for path in files:
            with Path(path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                first = file.read(length)
                file.seek(max(length, size - length))
                last = file.read(length)
            if first.startswith(b"\x1f\x8b"):  # gzip; six bytes hold when and where
                first = first[:4] + first[10:]
            digest.update(b"%d %d %d " % (size, len(first), len(last)) + first + last)
            total += size
    except OSError:  # loading the file reports it
        return Claim(name, "")
    if not files:
        return Claim(name, "")
    names = "/".join(os.path.basename(path) for path in files)
    return Claim(name, f"{total} bytes {digest.hexdigest()}", names)


def parties(claims: list[Claim]) -> list[int]:
    """For each rank the first rank with the same claim, with which it shares the files.

    DataError if one name means different files to two ranks.
    """
    first: dict[str, int] = {}
    for rank, each in enumerate(claims):
        if each.content:
            other = first.setdefault(each.name, rank)
            if claims[other].content != each.content:
                raise DataError(_different(each.name, other, rank, claims))
    if len({each.name for each in claims}) == 1:
        return [0] * len(claims)
    keys = [each[1:] if each.content else each.name for each in claims]
    return [keys.index(key) for key in keys]


def _different(name: str, one: int, other: int, claims: list[Claim]) -> str:
    sizes = [claims[rank].content.rpartition(" ")[0] for rank in (one, other)]
    return (
        f"The ranks see different files under one name, {name}: rank {one} of {sizes[0]}, rank "
        f"{other} of {sizes[1]}. A file with one name is shared out, so hosts without a shared "
        "folder need equal copies. If each rank has rows of its own, give each file "
        "a name of its own: train.0, train.1, …."
    )
