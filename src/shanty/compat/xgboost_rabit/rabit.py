"""`xgboost.rabit` as it was from XGBoost 0.7 to 2.0, over MPI.

Each function has the name, the arguments and the results of that time; `init` joins the ranks of
the run, with no tracker to be named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray
from xgboost import collective

from shanty.compat.xgboost_rabit import replace
from shanty.compat.xgboost_rabit.calls import tell
from shanty.xgboost.communication import finalize as part
from shanty.xgboost.communication import init as join

__all__ = [
    *("Op", "allreduce", "broadcast", "finalize", "get_processor_name", "get_rank"),
    *("get_world_size", "init", "is_distributed", "tracker_print", "version_number"),
    *("DTYPE_ENUM__", "RabitContext"),
]


class Op(IntEnum):
    """The ways in which `allreduce` combines; OR is bit by bit, of integers."""

    MAX = 0
    MIN = 1
    SUM = 2
    OR = 3


MAX, MIN, SUM, OR = Op
BITOR = Op.OR

_DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")
DTYPE_ENUM__ = {np.dtype(name): number for number, name in enumerate(_DTYPES)}

_TODAY = {op: collective.Op["BITWISE_OR" if op is Op.OR else op.name] for op in Op}


def init(args: Iterable[bytes | str] | None = None) -> None:
    """Joins the ranks of the run; all of them have to call it. A second call changes nothing.

    `args` are rabit's settings, such as `b"DMLC_TRACKER_URI=…"`. They have no effect.
    """
    words = [each.decode() if isinstance(each, bytes) else str(each) for each in args or ()]
    replace.put_in_place()
    join()
    if words:
        tell(["the arguments of rabit.init are not needed: MPI knows the ranks"])


def finalize() -> None:
    """Leave: what is loaded and trained from now on belongs to this process only."""
    part()


class RabitContext:
    """`init(args)` and `finalize()` around a block.

    After an error in it `finalize` is not called, because ranks wait for each other there, and the
    other ranks may be anywhere.
    """

    def __init__(self, args: Iterable[bytes | str] | None = None) -> None:
        self.args = args

    def __enter__(self) -> None:
        init(self.args)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            finalize()


def get_rank() -> int:
    """This process's number, the same as MPI's; 0 before `init` and after `finalize`."""
    return int(collective.get_rank())


def get_world_size() -> int:
    """The number of ranks; 1 before `init` and after `finalize`."""
    return int(collective.get_world_size())


def is_distributed() -> int:
    """1 between `init` and `finalize` where there is more than one rank, else 0."""
    return int(get_world_size() > 1)


def get_processor_name() -> bytes:
    """The name of this host; bytes, as it has always been."""
    return str(collective.get_processor_name()).encode()


def tracker_print(msg: object) -> None:
    """Writes a line to the output of this rank, which the run keeps and shows."""
    text = str(msg)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def broadcast(data: Any, root: int) -> Any:
    """The object that rank `root` has given, on every rank; pickled on its way."""
    return collective.broadcast(data, root)


def allreduce(
    data: NDArray[Any], op: int, prepare_fun: Callable[[NDArray[Any]], object] | None = None
) -> NDArray[Any]:
    """Combines `data` of all ranks into a flat array; `op` is one of `Op`.

    `prepare_fun(data)` is called first, where it is given: it may fill `data`. Raises
    TypeError for anything but an array of numbers.
    """
    if not isinstance(data, np.ndarray):
        raise TypeError(f"allreduce takes a numpy.ndarray, not {type(data).__name__}")
    if prepare_fun is not None:
        prepare_fun(data)
    result: NDArray[Any] = collective.allreduce(data, _TODAY[Op(op)])
    return result


def version_number() -> int:
    """The number of checkpoints: always 0, since a rank that dies ends the run."""
    return 0


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'xgboost.rabit' has no attribute {name!r}. What it had in XGBoost 0.7 to 2.0 is "
        f"here ({', '.join(__all__)}); XGBoost {xgboost.__version__} has xgboost.collective."
    )
