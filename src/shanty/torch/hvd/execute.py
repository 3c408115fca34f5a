"""`Executor`: does what all ranks are ready for, small reductions together in one. Starts MPI.

Reductions of one dtype and operation go through one buffer (Horovod's tensor fusion): many small
ones cost one call of MPI. The sources of what is done are in `shanty.torch.collectives`.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from shanty.torch import collectives
from shanty.torch.buffers import as_one
from shanty.torch.dtypes import Reduction, reduction
from shanty.torch.hvd import adasum
from shanty.torch.hvd.requests import HorovodInternalError, Kind, Op, Request, Signature
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
    Kind.ALLREDUCE: "MPI_ALLREDUCE",
    Kind.ALLGATHER: "MPI_ALLGATHER",
    Kind.BROADCAST: "MPI_BCAST",
    Kind.ALLTOALL: "MPI_ALLTOALL",
    Kind.REDUCESCATTER: "MPI_REDUCESCATTER",
}
_LAYOUTS = 64  # layouts of the buffer that are kept
_ALIGNMENT = 64  # bytes between the beginnings of two tensors in the buffer, a multiple of


class Executor:
    """For one process set, and one thread.

    threshold: bytes that are reduced in one go at most; 0 fuses nothing.
    """

    def __init__(self, at: Channel, threshold: int) -> None:
        self._at = at
        self._threshold = threshold
        self._buffers: dict[Hashable, Tensor] = {}
        self._layouts: dict[Hashable, tuple[Tensor, list[Tensor]]] = {}

    def batches(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        """What is done together; the same on all ranks, for the same requests in the same order."""
        groups: dict[Hashable, list[Request]] = {}
        for each in requests:
            key: Hashable = id(each)
            if each.kind is Kind.ALLREDUCE and each.op is not Op.ADASUM and each.tensors:
                first = each.tensors[0]
                if not _mixed(each):
                    key = (first.dtype, first.device, each.op, each.prescale, each.postscale)
            groups.setdefault(key, []).append(each)
        for group in groups.values():
            batch: list[Request] = []
            size = 0
            for each in group:
                if batch and size + each.nbytes > self._threshold:
                    yield batch
                    batch, size = [], 0
                batch.append(each)
                size += each.nbytes
            yield batch

    def run(
        self, batch: Sequence[Request], timeline: Timeline | None
    ) -> HorovodInternalError | None:
        """Do them; the error, if it did not work. Results are in the requests then."""
        first = batch[0]
        names = [str(each) for each in batch] if timeline is not None else []
        if timeline is not None:
            for name in names:
                timeline.start(name, first.kind.name)
        try:
            for each in batch:
                if each.ready is not None:
                    each.ready.synchronize()
            if first.kind is Kind.ALLREDUCE:
                self._all_reduce(batch, timeline, names)
            else:
                activity = _ACTIVITIES.get(first.kind, "")
                if timeline is not None and activity:
                    timeline.activity_start(names, activity)
                getattr(self, f"_{first.kind.value}")(first)
                if timeline is not None and activity:
                    timeline.activity_end(names)
            if first.ready is not None:
                torch.cuda.current_stream().synchronize()
        except Exception as error:  # noqa: BLE001 (whatever it is, synchronize raises it)
            failure = HorovodInternalError(f"{first} failed: {str(error) or type(error).__name__}")
            failure.__cause__ = error
            return failure
        finally:
            if timeline is not None:
                for name, each in zip(names, batch, strict=True):
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

    def _all_reduce(
        self, batch: Sequence[Request], timeline: Timeline | None, names: list[str]
    ) -> None:
        tensors = [tensor for each in batch for tensor in each.tensors]
        outputs = [tensor for each in batch for tensor in each.outputs]
        alike: dict[Hashable, list[tuple[Tensor, Tensor]]] = {}
        for pair in zip(tensors, outputs, strict=True):
            alike.setdefault((pair[0].dtype, pair[0].device), []).append(pair)
        with writing():
            for pairs in alike.values():
                if batch[0].op is Op.ADASUM:
                    self._adasum(batch[0], pairs, timeline, names)
                else:
                    self._reduce(batch[0], pairs, timeline, names)
        for each in batch:
            each.results = list(each.outputs)

    def _adasum(
        self,
        how: Request,
        pairs: Sequence[tuple[Tensor, Tensor]],
        timeline: Timeline | None,
        names: list[str],
    ) -> None:
        _tell(timeline, names, "MPI_ADASUM_ALLREDUCE")
        for tensor, output in pairs:
            if output is not tensor:
                output.copy_(tensor)
            _scale(output, how.prescale)
        adasum.all_reduce(self._at, [output for _, output in pairs])
        for _, output in pairs:
            _scale(output, how.postscale)
        _told(timeline, names)

    def _reduce(
        self,
        how: Request,
        pairs: Sequence[tuple[Tensor, Tensor]],
        timeline: Timeline | None,
        names: list[str],
    ) -> None:
        tensors, outputs = ([pair[side] for pair in pairs] for side in (0, 1))
        together, views = self._together(tensors, outputs)
        if views:
            _tell(timeline, names, "MEMCPY_IN_FUSION_BUFFER")
            torch._foreach_copy_(views, tensors)
            _told(timeline, names)
        _tell(timeline, names, "MPI_ALLREDUCE")
        _scale(together, how.prescale)
        collectives.all_reduce(self._at, [together], _how(together.dtype, how.op))
        _scale(together, how.postscale)
        _told(timeline, names)
        if views:
            _tell(timeline, names, "MEMCPY_OUT_FUSION_BUFFER")
            torch._foreach_copy_(outputs, views)
            _told(timeline, names)

    def _together(
        self, tensors: list[Tensor], outputs: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """One tensor that holds all of them: theirs, or the buffer with views for each."""
        if len(tensors) == 1:
            tensor, output = tensors[0], outputs[0]
            if output is not tensor:
                output.copy_(tensor)
            return output, []
        same = all(a is b for a, b in zip(tensors, outputs, strict=True))
        view = as_one(tensors) if same else None
        if view is not None:
            return view, []
        return self._layout(tensors)

    def _layout(self, tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        first = tensors[0]
        place = first.dtype, first.device
        key = (*place, *(each.shape for each in tensors))
        found = self._layouts.get(key)
        if found is not None:
            return found
        align = _ALIGNMENT // first.itemsize
        ends = list(itertools.accumulate(-(-each.numel() // align) * align for each in tensors))
        buffer = self._buffers.get(place)
        if buffer is None or len(buffer) < ends[-1]:
            self._layouts.clear()  # views of the old one
            buffer = self._buffers[place] = torch.zeros(ends[-1], dtype=place[0], device=place[1])
        if len(self._layouts) >= _LAYOUTS:
            self._layouts.clear()
        starts = [0, *ends[:-1]]
        views = [
            buffer[start : start + each.numel()].view(each.shape)
            for start, each in zip(starts, tensors, strict=True)
        ]
        made = self._layouts[key] = buffer[: ends[-1]], views
        return made

    def _reducescatter(self, request: Request) -> None:
        for tensor in request.tensors:
            rows = _even(tensor.shape[0], self._at.size)
            source = tensor
            if request.prescale != 1:
                source = tensor.clone()
                _scale(source, request.prescale)
            parts = torch.split(source, rows)
            result = torch.empty_like(parts[self._at.rank], memory_format=torch.contiguous_format)
            self._suppose(tensor.nbytes)
            with writing():
                how = _how(tensor.dtype, request.op)
                collectives.reduce_scatter(self._at, result, list(parts), how)
                _scale(result, request.postscale)
            request.results.append(result)

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
            request.results.append(result)

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
        request.results.append(result)
        request.received_splits = taken

    def _barrier(self, request: Request) -> None:
        """All have come: nothing is left to do."""

    def _suppose(self, nbytes: int) -> None:
        """All ranks know how much is moved, without a meeting."""
        self._at.suppose(nbytes)


def _mixed(request: Request) -> bool:
    """Whether a group has tensors of several types, which cannot share a buffer."""
    return request.grouped and len({(each.dtype, each.device) for each in request.tensors}) > 1


def _how(dtype: torch.dtype, op: Op) -> Reduction:
    return reduction(dtype, _OPS[op])


def _scale(tensor: Tensor, factor: float) -> None:
    if factor == 1:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.to(torch.float64).mul_(factor))


def _even(rows: int, ranks: int) -> list[int]:
    """Rows for each rank; the first ones get one more where they do not come out even."""
    least, more = divmod(rows, ranks)
    return [least + (rank < more) for rank in range(ranks)]


def _tell(timeline: Timeline | None, names: list[str], activity: str) -> None:
    if timeline is not None:
        timeline.activity_start(names, activity)


def _told(timeline: Timeline | None, names: list[str]) -> None:
    if timeline is not None:
        timeline.activity_end(names)
