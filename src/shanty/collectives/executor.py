"""`Executor`: runs the requests that all ranks have made, small reductions fused. Starts MPI.

The operations themselves are in `operations`, and in `fusion_buffer` for many tensors at once.

Adasum is a sum of gradients that does not grow where they point the same way. Two vectors a and b
are combined to (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b: their sum where they are orthogonal,
their mean where they are equal; many are combined in a binary tree, each tensor by itself. Maleki
et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from mpi4py import MPI

from shanty.collectives import operations
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.fusion_buffer import FusionBuffer
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Kernels, Reduction, Tensor, reduction
from shanty.collectives.operations import exchange_counts
from shanty.collectives.pair_reduction import Doing
from shanty.collectives.plan import Batch
from shanty.collectives.request import Kind, Op, Request, Signature
from shanty.collectives.ring import even_counts
from shanty.collectives.timeline import Timeline

_OPS = {Op.AVERAGE: "AVG", Op.SUM: "SUM", Op.MIN: "MIN", Op.MAX: "MAX", Op.PRODUCT: "PRODUCT"}
_TAG = 1  # of Adasum's messages


class Executor:
    """For one process set, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._kernels: Kernels = at.kernels
        self._reductions: dict[tuple[Any, Op], Reduction] = {}
        self._fusion = FusionBuffer(at)

    def run(
        self, batch: Batch, requests: Sequence[Request], timeline: Timeline | None
    ) -> HorovodInternalError | None:
        """Run them and put the results into the requests; returns the error if that fails."""
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
            elif batch.kind is not Kind.BARRIER:  # which is over when all have come
                word = "BCAST" if batch.kind is Kind.BROADCAST else batch.kind.name
                with doing(f"MPI_{word}"):
                    getattr(self, f"_{first.kind.value}")(first)
            if first.ready is not None:
                self._kernels.finish()
        except Exception as error:  # noqa: BLE001 (whatever it is, synchronize raises it)
            failure = HorovodInternalError(f"{first} failed: {str(error) or type(error).__name__}")
            failure.__cause__ = error
            return failure
        finally:
            if timeline is not None:
                for name, each in zip(names, requests, strict=True):
                    given = each.tensors[0] if each.tensors else None
                    shape = str(list(given.shape)) if given is not None else "[]"
                    dtype = self._kernels.kind(given.dtype) if given is not None else ""
                    timeline.end(name, shape, dtype)
        return None

    def stand_in(self, key: Signature) -> Request:
        """Return the request of a rank that has joined: it gives zeros, or no rows."""
        name, kind_word, op, prescale, postscale, root, grouped, what = key
        kind = Kind(kind_word)
        rows = kind in (Kind.ALLGATHER, Kind.ALLTOALL)
        tensors = [
            self._kernels.zeros((0, *shape) if rows else shape, dtype, device)
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
        given: list[Tensor] = outputs
        if any(each.outputs is not each.tensors for each in requests):
            given = [tensor for each in requests for tensor in each.tensors]
        for each in requests:
            outputs += each.outputs
            each.results = each.outputs
        with self._kernels.writing():
            if how.op is Op.ADASUM:
                if given is not outputs:
                    self._kernels.copy_all(outputs, given)
                self._scale(outputs, how.prescale)
                with doing("MPI_ADASUM_ALLREDUCE"):
                    _adaptive_sums(self._at, outputs)
                self._scale(outputs, how.postscale)
                return
            for part in batch.parts:
                whole = len(batch.parts) == 1
                some = outputs if whole else [outputs[i] for i in part.places]
                source = some
                if given is not outputs:
                    source = given if whole else [given[i] for i in part.places]
                before, way, after = self._way(part.dtype, how)
                if before != 1:
                    if source is not some:
                        self._kernels.copy_all(some, source)
                        source = some
                    self._scale(some, before)
                self._fusion.all_reduce(part, source, some, way, doing)
                self._scale(some, after)

    def _reducescatter(self, request: Request) -> None:
        for tensor in request.tensors:
            rows = even_counts(tensor.shape[0], self._at.size)
            before, way, after = self._way(tensor.dtype, request)
            source = tensor
            if before != 1:
                source = self._kernels.clone(tensor)
                self._scale((source,), before)
            parts = self._kernels.split(source, rows)
            result = self._kernels.empty(parts[self._at.rank].shape, tensor.dtype, tensor)
            self._at.suppose(tensor.nbytes)
            with self._kernels.writing():
                operations.reduce_scatter(self._at, result, list(parts), way)
                self._scale((result,), after)
            request.results = [*request.results, result]

    # ---- the others --------------------------------------------------------------------------

    def _allgather(self, request: Request) -> None:
        every = exchange_counts(self._at, [len(each) for each in request.tensors])
        for tensor, rows in zip(request.tensors, zip(*every, strict=True), strict=True):
            shape = (sum(rows), *tensor.shape[1:])
            result = self._kernels.empty(shape, tensor.dtype, tensor)
            self._at.suppose(result.nbytes)
            with self._kernels.writing():
                operations.all_gather(self._at, list(self._kernels.split(result, rows)), tensor)
            request.results = [*request.results, result]

    def _broadcast(self, request: Request) -> None:
        with self._kernels.writing():
            for tensor, output in zip(request.tensors, request.outputs, strict=True):
                if request.root == self._at.rank and output is not tensor:
                    self._kernels.copy(output, tensor)
                operations.broadcast(self._at, output, request.root)
        request.results = list(request.outputs)

    def _alltoall(self, request: Request) -> None:
        (tensor,) = request.tensors
        at, splits = self._at, request.splits
        row = math.prod(tensor.shape[1:]) if len(tensor) else 0
        given = list(splits) if splits is not None else [len(tensor) // at.size] * at.size
        every = exchange_counts(at, [*given, row])
        row = max(each[-1] for each in every)
        taken = [each[at.rank] for each in every]
        result = self._kernels.empty((sum(taken), *tensor.shape[1:]), tensor.dtype, tensor)
        at.suppose(sum(sum(each[:-1]) for each in every) * row * tensor.itemsize)
        with self._kernels.writing():
            elements = [each * row for each in taken], [each * row for each in given]
            operations.all_to_all_single(at, result, tensor, *elements)
        request.results = [*request.results, result]
        request.received_splits = taken

    def _way(self, dtype: Any, request: Request) -> tuple[float, Reduction, float]:
        """Return the factor before the reduction, the reduction, and the factor after it.

        What is reduced in another dtype is multiplied in that one, too, and is rounded once.
        """
        before, after, op = request.prescale, request.postscale, request.op
        way = self._how(dtype, op)
        if way.carrier is None or before == after == 1:
            return before, way, after
        if op is Op.PRODUCT:
            before, after = 1.0, after * before**self._at.size
        elif before >= 0 or op not in (Op.MIN, Op.MAX):  # a negative one would swap these two
            before, after = 1.0, after * before
        return before, replace(way, after=after), 1.0

    def _how(self, dtype: Any, op: Op) -> Reduction:
        known = self._reductions.get((dtype, op))
        if known is None:
            known = self._reductions[dtype, op] = reduction(dtype, _OPS[op], self._kernels)
        return known

    def _scale(self, tensors: Sequence[Tensor], factor: float) -> None:
        if factor != 1:
            self._kernels.scale(tensors, factor)


@contextmanager
def _shown(timeline: Timeline, names: list[str], activity: str) -> Iterator[None]:
    timeline.activity_start(names, activity)
    yield
    timeline.activity_end(names)


def _adaptive_sums(at: Channel, tensors: Sequence[Tensor]) -> None:
    """Each tensor becomes the adaptive sum of all ranks' versions, the same on all of them.

    They are fractions, and the number of ranks is a power of two (`arguments`). Half precision is
    combined in float32, and the products are summed up in float64.
    """
    kernels: Kernels = at.kernels
    for tensor in tensors:
        own = kernels.readable(tensor)
        own = kernels.convert(own, "float32") if tensor.itemsize < 4 else kernels.clone(own)
        other = kernels.empty(own.shape, own.dtype, own)
        distance = 1
        while distance < at.size:
            _swap(at, own, other, at.rank ^ distance)
            # The same order of operands on both sides, so that both get the same bits.
            pair = (own, other) if not at.rank & distance else (other, own)
            own = kernels.adaptive_sum(*pair)
            distance *= 2
        kernels.copy(tensor, own)


def _swap(at: Channel, own: Tensor, other: Tensor, partner: int) -> None:
    requests = []
    kernels: Kernels = at.kernels
    for mine, theirs in zip(kernels.pieces(own), kernels.pieces(other), strict=True):
        requests.append(at.apart.Irecv(kernels.spec(theirs), partner, _TAG))
        requests.append(at.apart.Isend(kernels.spec(mine), partner, _TAG))
    MPI.Request.Waitall(requests)
