"""What the checks of XGBoost and of LightGBM share: rows whose categories differ between the ranks,
and errors that all ranks must have alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
from checks import raised
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
BOUND = 10.0  # seconds within which an error has to be there
VALUE = {"ant": 0.0, "bee": 1.0, "cat": 5.0, "dog": 9.0}
History = dict[str, dict[str, list[float]]]


def animals(kinds: list[str], order: list[str] | None = None, rows: int = 400) -> pd.DataFrame:
    """Rows of some kinds; their categories are in that order, and others on the other ranks."""
    chance = np.random.default_rng(RANK)
    kind = pd.Categorical(chance.choice(kinds, rows), order or sorted(kinds))
    return pd.DataFrame({"noise": chance.random(rows), "kind": kind})


def mine() -> pd.DataFrame:
    """Of each rank other kinds; the last rank has the others' in another order."""
    if RANK == LAST:
        return animals(["dog", "bee", "cat"], ["dog", "cat", "bee"])
    return animals(sorted(VALUE)[RANK : RANK + 3])


def values(rows: pd.DataFrame) -> np.ndarray:
    return np.array([VALUE[str(kind)] for kind in rows["kind"]], np.float64)


def predicts(predict: Callable[[pd.DataFrame], np.ndarray], rows: pd.DataFrame) -> None:
    """The model predicts any rank's rows, whatever their categories."""
    some = animals(["dog", "ant"], ["dog", "ant"], 20)
    for each in (rows, some):
        assert abs(predict(each) - values(each)).max() < 0.1


def same(value: object) -> None:
    """All ranks have the same value."""
    assert all(each == value for each in WORLD.allgather(value)), WORLD.allgather(value)


def differs(kind: type[Exception], make: Callable[[], object], *words: str) -> str:
    """All ranks raise the same error, at once."""
    begun = time.monotonic()
    found = raised(kind, make, *words)
    assert time.monotonic() - begun < BOUND
    same(found)
    return found


def fails_on_the_last(
    train: Callable[[Callable[..., None]], object], data_error: type[Exception]
) -> None:
    """`train` calls what it is given, which raises on one rank: it is that exception there, and a
    DataError with its words and the rank's number elsewhere."""
    for kind in (ZeroDivisionError, ValueError, data_error):

        def metric(*_: object, kind: type[Exception] = kind) -> None:
            if RANK == LAST:
                raise kind("my mistake")

        begun = time.monotonic()
        try:
            train(metric)
        except (data_error, kind) as error:
            assert type(error) is (kind if RANK == LAST else data_error)
            words = f"rank {LAST}: the metric raised {kind.__name__}: my mistake"
            assert str(error) == ("my mistake" if RANK == LAST else words)
        else:
            raise AssertionError("no error")
        assert time.monotonic() - begun < BOUND
