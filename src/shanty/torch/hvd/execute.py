"""`Executor`: does what all ranks are ready for, small reductions together in one. Starts MPI.

The sources of what is done are in `shanty.torch.collectives`, and in `fusion` for many at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from shanty.torch import collectives
from shanty.torch.dtypes import Reduction, reduction
from shanty.torch.hvd import adasum
from shanty.torch.hvd.fusion import Fusion
from shanty.torch.hvd.plan import Batch
from shanty.torch.hvd.requests import HorovodInternalError, Kind, Op, Request, Signature
from shanty.torch.hvd.window import Doing
from shanty.torch.meeting import Channel
from shanty.torch.messages import writing

if TYPE_CHECKING:
    from shanty.torch.hvd.timeline import Timeline

_OPS = {
    Op.AVERAGE: ReduceOp.AVG,
    Op.SUM: ReduceOp.SUM,
    Op.MIN: ReduceOp.MIN,
    Op.MAX: ReduceOp.MAX,
    Op.PRODUCT: ReduceOp.PRODUCT,
}
_ACTIVITIES = {
    Kind.ALLGATHER: "MPI_ALLGATHER",
    Kind.BROADCAST: "MPI_BCAST",
    Kind.ALLTOALL: "MPI_ALLTOALL",
    Kind.REDUCESCATTER: "MPI_REDUCESCATTER",
}


class Executor:
    """For one process set, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._fusion = Fusion(at)

    def run(
        self, batch: Batch, requests: Sequence[Request], timeline: Timeline | None
    ) -> HorovodInternalError | None:
        """Do them; the error, if it did not work. Results are in the requests then."""
        first = requests[0]
        names = [str(each) for each in requests] if timeline is not None else []
        doing: Doing = nullcontext
        if timeline is not None:
            doing = partial(_shown, timeline, names)
            for name in names:
                timeline.start(name, batch.kind.name)
        try:
            for each in requests:
                if each.ready is not None:
                    each.ready.synchronize()
            if batch.kind is Kind.ALLREDUCE:
                self._all_reduce(batch, requests, doing)
            elif batch.kind is not Kind.BARRIER:  # all have come: nothing is left to do
                with doing(_ACTIVITIES[batch.kind]):
                    getattr(self, f"_{first.kind.value}")(first)
            if first.ready is not None:
                torch.cuda.current_stream().synchronize()
        except Exception as error:  # noqa: BLE001 (whatever it is, synchronize raises it)
            failure = HorovodInternalError(f"{first} failed: {str(error) or type(error).__name__}")
            failure.__cause__ = error
            return failure
        finally:
            if timeline is not None:
                for name, each in zip(names, requests, strict=True):
                    given = each.tensors[0] if each.tensors else None
                    shape = str(list(given.shape)) if given is not None else "[]"
                    timeline.end(name, shape, str(given.dtype) if given is not None else "")
        return None

    def stand_in(self, key: Signature) -> Request:
        """What a rank that has joined gives: zeros, or nothing."""
        name, kind_word, op, prescale, postscale, root, grouped, what = key
        kind = Kind(kind_word)
        rows = kind in (Kind.ALLGATHER, Kind.ALLTOALL)
        tensors = [
            torch.zeros((0, *shape) if rows else shape, dtype=dtype, device=device)
            for dtype, shape, device in what
        ]
        return Request(
            kind,
            str(name),
            tensors,
            tensors if kind in (Kind.ALLREDUCE, Kind.BROADCAST) else (),
            op=Op(op),
            prescale=prescale,
            postscale=postscale,
            root=root,
            splits=[0] * self._at.size if kind is Kind.ALLTOALL else None,
            grouped=bool(grouped),
        )

    # ---- reductions --------------------------------------------------------------------------

    def _all_reduce(self, batch: Batch, requests: Sequence[Request], doing: Doing) -> None:
        how = requests[0]
        outputs: list[Tensor] = []
        for each in requests:
            outputs += each.outputs
            if each.outputs is not each.tensors:
                for output, tensor in zip(each.outputs, each.tensors, strict=True):
                    if output is not tensor:
                        output.copy_(tensor)
            each.results = each.outputs
        with writing():
            _scale(outputs, how.prescale)
            if how.op is Op.ADASUM:
                with doing("MPI_ADASUM_ALLREDUCE"):
                    adasum.all_reduce(self._at, outputs)
            else:
                for part in batch.parts:
                    some = outputs if len(batch.parts) == 1 else [outputs[i] for i in part.places]
                    self._fusion.all_reduce(part, some, _how(part.dtype, how.op), doing)
            _scale(outputs, how.postscale)

    def _reducescatter(self, request: Request) -> None:
        for tensor in request.tensors:
            rows = _even(tensor.shape[0], self._at.size)
            source = tensor
            if request.prescale != 1:
                source = tensor.clone()
                _scale((source,), request.prescale)
            parts = torch.split(source, rows)
            result = torch.empty_like(parts[self._at.rank], memory_format=torch.contiguous_format)
            self._suppose(tensor.nbytes)
            with writing():
                how = _how(tensor.dtype, request.op)
                collectives.reduce_scatter(self._at, result, list(parts), how)
                _scale((result,), request.postscale)
            request.results = [*request.results, result]

    # ---- the others --------------------------------------------------------------------------

    def _allgather(self, request: Request) -> None:
        own = torch.tensor([len(each) for each in request.tensors])
        every = torch.empty((self._at.size, len(own)), dtype=torch.int64)
        self._at.comm.Allgather(own.numpy(), every.numpy())
        for tensor, rows in zip(request.tensors, every.t().tolist(), strict=True):
            shape = (sum(rows), *tensor.shape[1:])
            result = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
            self._suppose(result.nbytes)
            with writing():
                collectives.all_gather(self._at, list(torch.split(result, rows)), tensor)
            request.results = [*request.results, result]

    def _broadcast(self, request: Request) -> None:
        with writing():
            for tensor, output in zip(request.tensors, request.outputs, strict=True):
                if request.root == self._at.rank and output is not tensor:
                    output.copy_(tensor)
                collectives.broadcast(self._at, output, request.root)
        request.results = list(request.outputs)

    def _alltoall(self, request: Request) -> None:
        (tensor,) = request.tensors
        at, splits = self._at, request.splits
        row = tensor[0].numel() if len(tensor) else 0
        given = list(splits) if splits is not None else [len(tensor) // at.size] * at.size
        own = torch.tensor([*given, row])
        every = torch.empty((at.size, at.size + 1), dtype=torch.int64)
        at.comm.Allgather(own.numpy(), every.numpy())
        row = int(every[:, -1].max())
        taken = every[:, at.rank].tolist()
        result = torch.empty(
            (sum(taken), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
        )
        self._suppose(int(every[:, :-1].sum()) * row * tensor.itemsize)
        with writing():
            elements = [each * row for each in taken], [each * row for each in given]
            collectives.all_to_all_single(at, result, tensor, *elements)
        request.results = [*request.results, result]
        request.received_splits = taken

    def _suppose(self, nbytes: int) -> None:
        """All ranks know how much is moved, without a meeting."""
        self._at.suppose(nbytes)


def _how(dtype: torch.dtype, op: Op) -> Reduction:
    return reduction(dtype, _OPS[op])


def _scale(tensors: Sequence[Tensor], factor: float) -> None:
    if factor == 1:
        return
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(factor)
        else:
            tensor.copy_(tensor.to(torch.float64).mul_(factor))


def _even(rows: int, ranks: int) -> list[int]:
    """Rows for each rank; the first ones get one more where they do not come out even."""
    least, more = divmod(rows, ranks)
    return [least + (rank < more) for rank in range(ranks)]


@contextmanager
def _shown(timeline: Timeline, names: list[str], activity: str) -> Iterator[None]:
    timeline.activity_start(names, activity)
    yield
    timeline.activity_end(names)
