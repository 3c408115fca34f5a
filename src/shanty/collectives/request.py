"""Requests: one call of Horovod's API each, and how it ended. Importing this starts no MPI."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Protocol

Tensor = Any
"""A framework's own; see `kernels`."""

Name = tuple[str | None, "Kind"]
"""Name and kind of a request, by which ranks find each other's."""

Signature = tuple[Any, ...]
"""Name and kind of a request, and what else must be the same on every rank."""


class Kind(StrEnum):
    """A collective. The values are Horovod's words, which its timeline shows in capitals."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    JOIN = "join"


class Op(IntEnum):
    """The ways to combine elements; numbered as in Horovod."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class Driver(Protocol):
    """The negotiator, as a request knows it."""

    def drive(self, request: Request | TensorEntry) -> None:
        """Do the work of its thread while this request proceeds without delay."""

    def request_of(self, entry: TensorEntry) -> Request:
        """Return the request that an entry has become."""

    def hurry(self) -> None:
        """Start soon: a caller polls."""


DeviceOf = Callable[[Tensor], str]
"""Returns the kind of device that a tensor is on."""


def on_host(_: Tensor) -> str:
    """Return the device of tensors that are nowhere else."""
    return "cpu"


@dataclass(eq=False, repr=False)
class Request:
    """One named operation, as this rank asked for it, and its outcome once it has ended.

    name: what its peers on other ranks have, too; None for the next unnamed call of its kind.
    tensors: what this rank gives. outputs: where results go; made here where there are none.
    op, prescale, postscale: of a reduction, and the factors before and after it.
    root: rank within the process set. splits: rows for each rank; None cuts evenly.
    grouped: whether the tensors are one of Horovod's groups, also where it is only one.
    then: called once it has ended, in the thread that ends it.

    After its end: `done`, and either `error`, or `results` (one tensor for each given),
    `received_splits` (of an alltoall: rows from each rank), `value` (of a join: who came last).
    """

    kind: Kind
    name: str | None
    tensors: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    _: KW_ONLY
    op: Op = Op.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    splits: Sequence[int] | None = None
    grouped: bool = False
    then: Callable[[], object] | None = None
    # Thousands of them may be made in a step: what most of them never need is not set.
    done: bool = field(default=False, init=False)
    error: Exception | None = field(default=None, init=False)
    results: Sequence[Tensor] = field(default=(), init=False)
    received_splits: Sequence[int] = field(default=(), init=False)
    value: int = field(default=-1, init=False)
    label: Name = field(default=(None, Kind.JOIN), init=False)  # name, once it has one, and kind
    since: float = field(default=0.0, init=False)  # when it was submitted, by time.monotonic()
    ready: Any = field(default=None, init=False)  # an event: the tensors may be read after it
    negotiator: Driver | None = field(default=None, init=False)  # that has it, until it ends
    awaited: bool = field(default=False, init=False)  # whether the main thread waits for it
    signature: Signature = field(default=(), init=False)  # its key, once the negotiator has it
    number: int = field(default=-1, init=False)  # by which the ranks know it, once agreed on
    _gate: threading.Event | None = field(default=None, init=False)  # for threads that wait

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}"

    @property
    def nbytes(self) -> int:
        """Bytes that this rank gives."""
        tensors = self.tensors
        return tensors[0].nbytes if len(tensors) == 1 else sum(each.nbytes for each in tensors)

    def key(self, device: DeviceOf = on_host) -> Signature:
        """Return the name, and all that the ranks must agree on."""
        kind, tensors = self.kind, self.tensors
        if len(tensors) == 1 and kind is Kind.ALLREDUCE:  # as most are
            (only,) = tensors
            what: tuple[Any, ...] = ((only.dtype, only.shape, device(only)),)
        else:
            first = 1 if kind in _ROWS_DIFFER else 0
            what = tuple([(each.dtype, each.shape[first:], device(each)) for each in tensors])
        how = self.op, self.prescale, self.postscale, self.root, self.grouped
        return (self.name, kind, *how, what)

    def asks(self, key: Signature, device: DeviceOf = on_host) -> bool:
        """Return true if that is its key, for the price of looking at it."""
        what = key[-1]
        tensors = self.tensors
        if self.kind is not Kind.ALLREDUCE or len(tensors) != 1 or len(what) != 1:
            return self.key(device) == key
        (only,), ((dtype, shape, where),) = tensors, what
        return (
            only.dtype == dtype
            and only.shape == shape
            and self.op is key[2]
            and self.prescale == key[3]
            and self.postscale == key[4]
            and self.grouped == key[6]
            and device(only) == where
            and self.name == key[0]
        )

    def wait(self) -> Sequence[Tensor]:
        """The results, once they are there; raises the error of a request that failed."""
        if not self.done:
            self.awaited = threading.current_thread() is threading.main_thread()
            try:
                if (negotiator := self.negotiator) is not None:
                    negotiator.drive(self)
                if not self.done:
                    self._sleep()
            finally:
                self.awaited = False
        if self.error is not None:
            raise self.error
        return self.results

    def _sleep(self) -> None:
        with _gates:
            gate = self._gate = self._gate or threading.Event()
        if not self.done:  # `finish` says so before it looks for the gate
            gate.wait()

    def finish(self, error: Exception | None = None) -> None:
        """End it, and wake the threads that wait. Only the negotiator calls this."""
        self.negotiator = None
        self.tensors = ()  # a handle that is never synchronized keeps nothing alive
        if error is not None:
            self.error = error
            self.results = ()
        self.done = True
        if self._gate is not None:
            self._gate.set()
        if self.then is not None:
            self.then()

    def age(self) -> float:
        """Seconds since it was submitted."""
        return time.monotonic() - self.since


_ROWS_DIFFER = (Kind.ALLGATHER, Kind.ALLTOALL)
_gates = threading.Lock()  # around making one


def spell(key: Signature) -> str:
    """Spell a key: "allreduce.grad.w(SUM, float32, (3, 4))"."""
    name, kind, op, prescale, postscale, root, grouped, what = key
    words: list[str] = []
    if kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
        words.append(Op(op).name)
        words += [f"prescale {prescale}"] if prescale != 1 else []
        words += [f"postscale {postscale}"] if postscale != 1 else []
    if kind is Kind.BROADCAST:
        words.append(f"root {root}")
    rows = kind in _ROWS_DIFFER
    for dtype, shape, device in what:
        size = ", ".join(["*"] * rows + [str(each) for each in shape])
        words += [str(dtype).rpartition(".")[2], f"({size})"]
        words += [device] if device != "cpu" else []
    group = "grouped " if grouped else ""
    return f"{group}{kind}.{name}({', '.join(words)})"


@dataclass(eq=False, repr=False, slots=True)
class TensorEntry:
    """An allreduce in place of one tensor with a name, of which a step makes thousands.

    Ranks find each other's by `name`; `tensor` is given, and gets the result. It holds what the
    call needs and no more; the queue makes a `Request` of it only where it has to.

    outcome: the request that it has become, or become part of; None before that.
    """

    name: str
    tensor: Tensor
    op: Op
    negotiator: Driver
    outcome: Request | None = None

    @property
    def done(self) -> bool:
        """True once it has ended."""
        return (outcome := self.outcome) is not None and outcome.done

    def wait(self) -> Sequence[Tensor]:
        """The tensor, once it has its result; raises the error where it failed."""
        if not self.done:
            self.negotiator.drive(self)
        (self.outcome or self.negotiator.request_of(self)).wait()
        return (self.tensor,)

    def __str__(self) -> str:
        return f"{Kind.ALLREDUCE}.{self.name}"

    def request(self, since: float) -> Request:
        """Make it a request of its own. since: when it was submitted, about."""
        only = (self.tensor,)
        made = Request(Kind.ALLREDUCE, self.name, only, only, op=self.op)
        made.label = self.name, Kind.ALLREDUCE
        made.since = since
        made.negotiator = self.negotiator
        self.outcome = made
        return made
