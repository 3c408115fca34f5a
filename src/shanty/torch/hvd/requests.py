"""What one call of Horovod's API asks for, and how it ended. Importing this starts no MPI."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from shanty.torch.hvd.engine import Engine

Signature = tuple[Any, ...]
"""Name and kind of a request, and what else must be the same on every rank."""


class Kind(Enum):
    """What is done. The values are Horovod's words, which its timeline shows in capitals."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    JOIN = "join"


class Op(IntEnum):
    """How elements are combined; numbered as in Horovod."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class HorovodInternalError(RuntimeError):
    """A collective failed: the ranks disagreed, one of them left, or none came for too long."""


class DuplicateNameError(HorovodInternalError, ValueError):
    """A request of the same name is under way on this rank."""


class Request:
    """One named operation, as this rank asked for it, and its outcome once it has ended.

    name: what its peers on other ranks have, too; None for the next unnamed call of its kind.
    tensors: what this rank gives. outputs: where results go; made here where there are none.
    op, prescale, postscale: of a reduction, and the factors before and after it.
    root: rank within the process set. splits: rows for each rank; None cuts evenly.
    grouped: whether the tensors are one of Horovod's groups, also where it is only one.

    After its end: `done`, and either `error`, or `results` (one tensor for each given),
    `received_splits` (of an alltoall: rows from each rank), `value` (of a join: who came last).
    """

    __slots__ = (
        *("kind", "name", "tensors", "outputs", "op", "prescale", "postscale", "root", "splits"),
        *("grouped", "done", "error", "results", "received_splits", "value", "since", "ready"),
        *("engine", "number", "awaited", "_gate"),
    )

    def __init__(
        self,
        kind: Kind,
        name: str | None,
        tensors: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        *,
        op: Op = Op.SUM,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        splits: Sequence[int] | None = None,
        grouped: bool = False,
    ) -> None:
        self.kind = kind
        self.name = name
        self.tensors = tensors
        self.outputs = outputs
        self.op = op
        self.prescale = prescale
        self.postscale = postscale
        self.root = root
        self.splits = splits
        self.grouped = grouped
        self.done = False
        self.error: Exception | None = None
        self.results: list[Tensor] = []
        self.received_splits: list[int] = []
        self.value = -1
        self.since = 0.0  # when it was submitted, by time.monotonic()
        self.ready: Any = None  # a CUDA event: the tensors may be read after it
        self.engine: Engine | None = None  # that it was given to, until it ends
        self.awaited = False  # whether the main thread waits for it
        self.number = -1  # by which the ranks know it, once they have agreed on one
        self._gate = threading.Lock()
        self._gate.acquire()

    def __str__(self) -> str:
        return f"{self.kind.value}.{self.name}"

    @property
    def nbytes(self) -> int:
        """Bytes that this rank gives."""
        return sum(each.nbytes for each in self.tensors)

    def key(self) -> Signature:
        """The name, and all that the ranks must agree on."""
        kind = self.kind
        rows = kind in _ROWS_DIFFER
        what = tuple(
            [
                (each.dtype, each.shape[1:] if rows else each.shape, each.device.type)
                for each in self.tensors
            ]
        )
        return (
            *(self.name, kind.value, int(self.op), self.prescale, self.postscale, self.root),
            *(self.grouped, what),
        )

    def wait(self) -> list[Tensor]:
        """The results, once they are there; raises the error of a request that failed."""
        if not self.done:
            self.awaited = threading.current_thread() is threading.main_thread()
            engine = self.engine
            try:
                if engine is not None:
                    engine.drive(self)
                self._gate.acquire()
                self._gate.release()  # the next waiter's turn
            finally:
                self.awaited = False
        if self.error is not None:
            raise self.error
        return self.results

    def finish(self, error: Exception | None = None) -> None:
        """End it, for whoever waits. Only the engine calls this."""
        self.error = error
        self.engine = None
        self.tensors = ()  # nothing is kept alive by a handle that nobody synchronizes
        if error is not None:
            self.results = []
        self.done = True
        self._gate.release()

    def age(self) -> float:
        """Seconds since it was submitted."""
        return time.monotonic() - self.since


_ROWS_DIFFER = (Kind.ALLGATHER, Kind.ALLTOALL)


def spell(key: Signature) -> str:
    """A key in words: "allreduce.grad.w(SUM, float32, (3, 4))"."""
    name, kind, op, prescale, postscale, root, grouped, what = key
    words: list[str] = []
    if kind in (Kind.ALLREDUCE.value, Kind.REDUCESCATTER.value):
        words.append(Op(op).name)
        words += [f"prescale {prescale}"] if prescale != 1 else []
        words += [f"postscale {postscale}"] if postscale != 1 else []
    if kind == Kind.BROADCAST.value:
        words.append(f"root {root}")
    rows = kind in (each.value for each in _ROWS_DIFFER)
    for dtype, shape, device in what:
        size = ", ".join(["*"] * rows + [str(each) for each in shape])
        words += [str(dtype).removeprefix("torch."), f"({size})"]
        words += [device] if device != "cpu" else []
    group = "grouped " if grouped else ""
    return f"{group}{kind}.{name}({', '.join(words)})"
