"""`xgb.DMatrix` as it was with rabit: of a file, between init and finalize, this rank's share.

Which share is said by `whose`; reading is the business of shanty.xgboost. A matrix of what is in
memory was each rank's own affair, and could be made by one of them only, to predict with.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xgboost
from xgboost import collective

from shanty.compat.xgboost_rabit.calls import Arguments, named
from shanty.compat.xgboost_rabit.notes import say, tell
from shanty.compat.xgboost_rabit.whose import claim, parties
from shanty.xgboost.errors import DataError
from shanty.xgboost.exchange import together
from shanty.xgboost.matrix import made_by_all, share
from shanty.xgboost.sources import SUFFIXES, parse
from shanty.xgboost.world import World, current

if TYPE_CHECKING:
    from mpi4py import MPI

# What could come by position after data and label: from XGBoost 1.3 on, and before.
NEW = (
    *("weight", "base_margin", "missing", "silent", "feature_names", "feature_types"),
    *("nthread", "group", "qid"),
)
_MAGIC = b"\x01\xab\xff\xff"  # what begins a file of DMatrix.save_binary
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

    return __init__


def _order(values: Sequence[Any]) -> Sequence[str]:
    """What arguments by position mean: the first of old was `missing`, and the third `silent`."""
    if values and np.isscalar(values[0]):
        return OLD
    third = values[2] if len(values) > 2 else None
    old = values and values[0] is None and (third is None or isinstance(third, bool))
    return OLD if old else NEW


def _of_all_ranks(data: Any, label: Any) -> bool:
    """Whether all ranks make the matrix, or none is made of it.

    Sparse rows to train on may differ in width, over which today's XGBoost agrees by itself. An
    iterator may ask for its rank. A handle is what `DMatrix.slice` has made already.
    """
    if data is None or isinstance(data, (xgboost.DataIter, ctypes.c_void_p)):
        return True
    sparse = sys.modules.get("scipy.sparse")
    return label is not None and sparse is not None and bool(sparse.issparse(data))


def _alone(call: Callable[[], None]) -> None:
    """Do something as if this rank were by itself: XGBoost's ranks are joined in one thread only.

    Else each matrix is made by all ranks together. What that is good for, `calls.train` checks.
    """
    if collective.get_world_size() == 1:
        call()
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()


def _load(
    original: Callable[..., None], matrix: Any, uri: str, label: Any, options: Arguments
) -> None:
    """Make `matrix` of this rank's share of `uri`, all of it where the rank is alone with it."""
    world = current()
    what = f"loading {uri}"
    data, paths = _meant(uri)
    first = together(world, what, lambda _: claim(uri, paths), parties)
    if world.rank == 0 and any(first):
        say(_not_shared(uri, first))
    with ExitStack() as stack:
        if not any(first):
            rows, arguments = stack.enter_context(share(world, data, label, options))
        else:
            assert world.comm is not None
            comm = cast("MPI.Intracomm", world.comm.Split(first[world.rank], world.rank))
            made: list[tuple[Any, Arguments]] = []

            def read(_: object) -> None:
                made.append(stack.enter_context(share(World(comm), data, label, options)))

            together(world, what, read, lambda _: None)
            comm.Free()
            ((rows, arguments),) = made
        made_by_all(world, matrix, lambda: original(matrix, rows, **arguments))


def _not_shared(uri: str, first: Sequence[int]) -> str:
    others = [str(rank) for rank, party in enumerate(first) if rank and not party]
    if len(set(first)) == len(first):
        return f"{uri} is rank 0's alone: each rank reads a file of its own"
    whose = f"shared with rank {', '.join(others)} only" if others else "rank 0's alone"
    return f"{uri} is {whose}: the other ranks read other files"


def _meant(uri: str) -> tuple[str, tuple[str, ...]]:
    """The URI with the format that it had with rabit, and its files.

    What nothing tells a format of was LibSVM. A cache is left out.
    """
    name, _, cache = uri.partition("#")
    if cache:
        tell([f"#{cache} is left out: rows are kept in memory"])
    meant = name
    if "format=" not in name.partition("?")[2]:
        meant = f"{name}{'&' if '?' in name else '?'}format=libsvm"
    try:
        files = parse(meant).files
    except (DataError, OSError):  # told by whoever reads it, on all ranks
        return name, ()
    if any(_tells(file) for file in files):
        meant = name
    return meant, files


def _tells(file: str) -> bool:
    """Whether the file's format is known: from its name, or because it is XGBoost's own."""
    if Path(file.removesuffix(".gz")).suffix.lower() in SUFFIXES:
        return True
    try:
        with Path(file).open("rb") as opened:
            return opened.read(4) == _MAGIC
    except OSError:
        return False
