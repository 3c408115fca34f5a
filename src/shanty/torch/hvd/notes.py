"""Allreduces in place of one tensor with a name, as a training loop makes thousands in a step.

A call notes down what it needs (`Note`), and no more. The engine takes the notes of many calls at
once, and compares them, all at once too, with those of an earlier step (`Pattern`): where nothing
has changed, as is usual, they stay together (`Bundle`) until they are done. Where something has, or
they cannot be done at once, each becomes a `Request` of its own. Importing this starts no MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from shanty.torch.hvd.plan import Batch
from shanty.torch.hvd.requests import HorovodInternalError, Kind, Op, Request

if TYPE_CHECKING:
    from shanty.torch.hvd.engine import Engine

_FEW = 8  # notes for which a pattern is not worth its while
_PATTERNS = 64  # that are kept


class Note:
    """One call. Ranks find each other's by `name`; `tensor` is given, and gets the result.

    outcome: the request that it has become, or become part of; None before that.
    """

    __slots__ = ("engine", "name", "op", "outcome", "tensor")

    def __init__(self, name: str, tensor: Tensor, op: Op, engine: Engine) -> None:
        self.name = name
        self.tensor = tensor
        self.op = op
        self.engine = engine
        self.outcome: Request | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return (outcome := self.outcome) is not None and outcome.done

    def wait(self) -> Sequence[Tensor]:
        """The tensor, once it has its result; raises the error where it failed."""
        if not self.done:
            self.engine.drive(self)
        (self.outcome or self.engine.request_of(self)).wait()
        return (self.tensor,)

    def __str__(self) -> str:
        return f"{Kind.ALLREDUCE}.{self.name}"

    def request(self, since: float) -> Request:
        """Have it become one of its own. since: when it was submitted, about."""
        only = (self.tensor,)
        made = Request(Kind.ALLREDUCE, self.name, only, only, op=self.op)
        made.label = self.name, Kind.ALLREDUCE
        made.since = since
        made.engine = self.engine
        self.outcome = made
        return made


class Pattern:
    """Notes that all ranks have agreed on before. mask: the bits of their numbers."""

    def __init__(self, notes: Sequence[Note], mask: int) -> None:
        tensors = [each.tensor for each in notes]
        self.mask = mask
        self.names = [each.name for each in notes]
        self._ops = [each.op for each in notes]
        self._dtypes = [each.dtype for each in tensors]
        self._shapes = [each.shape for each in tensors]
        self._planned: Sequence[Batch] = ()
        self._places: list[list[int]] = []

    def fits(self, notes: Sequence[Note], tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same."""
        return (
            [each.name for each in notes] == self.names
            and [each.op for each in notes] == self._ops
            and [each.dtype for each in tensors] == self._dtypes
            and [each.shape for each in tensors] == self._shapes
        )

    def places(self, planned: Sequence[Batch]) -> list[list[int]]:
        """Which of the notes each batch of a plan for all of them is made of."""
        if self._planned is not planned:
            place = {name: i for i, name in enumerate(self.names)}
            self._places = [[place[str(item.name[0])] for item in each.items] for each in planned]
            self._planned = planned
        return self._places


class Bundle:
    """Notes that fit a pattern. since: when the first was submitted, by time.monotonic()."""

    def __init__(
        self, notes: list[Note], tensors: list[Tensor], pattern: Pattern, since: float
    ) -> None:
        self.notes = notes
        self.mask, self.names, self.since = pattern.mask, pattern.names, since
        self._tensors = tensors
        self._pattern = pattern
        self._ended: list[tuple[Request, list[int], HorovodInternalError | None]] = []

    def run(
        self,
        planned: Sequence[Batch],
        run: Callable[[Batch, Sequence[Request], None], HorovodInternalError | None],
    ) -> None:
        """Have it done by `run`, as is planned."""
        for batch, places in zip(planned, self._pattern.places(planned), strict=True):
            tensors = [self._tensors[i] for i in places]
            first = self.notes[places[0]]
            whole = Request(Kind.ALLREDUCE, first.name, tensors, tensors, op=first.op)
            self._ended.append((whole, places, run(batch, (whole,), None)))

    def finish(self) -> None:
        """End what was done, for whoever waits."""
        for whole, places, error in self._ended:
            whole.finish(error)
            whole.outputs = whole.results = ()  # a note that is kept shall not keep them all
            for i in places:
                self.notes[i].outcome = whole

    def requests(self) -> Iterator[Request]:
        """Let each go its own way."""
        return (each.request(self.since) for each in self.notes)


class Patterns:
    """Those of one process set, by which what comes again is recognised."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, int], Pattern] = {}

    def bundle(self, notes: list[Note], since: float) -> Bundle | None:
        """These as a bundle; None where they are not as they were before."""
        pattern = self._patterns.get((notes[0].name, len(notes)))
        if pattern is None:
            return None
        tensors = [each.tensor for each in notes]
        return Bundle(notes, tensors, pattern, since) if pattern.fits(notes, tensors) else None

    def learn(self, notes: Sequence[Note]) -> None:
        """These have become requests that have numbers, or not."""
        if len(notes) < _FEW:
            return
        mask = 0
        for each in notes:
            if each.outcome is None or each.outcome.number < 0:
                return
            mask |= 1 << each.outcome.number
        if len(self._patterns) >= _PATTERNS:
            self._patterns.clear()
        self._patterns[notes[0].name, len(notes)] = Pattern(notes, mask)

    def forget(self) -> None:
        """Numbers mean something else now."""
        self._patterns.clear()
