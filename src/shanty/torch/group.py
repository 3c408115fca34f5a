"""`MPIGroup`: the calls that torch.distributed and DistributedDataParallel make of a group.

Each call checks its tensors in the caller, where a mistake belongs, then hands the work to the
communication thread and returns at once. Importing this module starts MPI.
"""

# torch declares each call in several overloads; it makes, and this class takes, the one with opts.
# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from types import FunctionType

import torch
from mpi4py import MPI
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from shanty.collectives import operations
from shanty.torch import messages, sparse
from shanty.torch.devices import routed
from shanty.torch.identity import skip_when_compiling
from shanty.torch.kernels import reduction
from shanty.torch.membership import Membership, shape
from shanty.torch.work import Body, MPIWork


class MPIGroup(Membership):
    """A process group over an MPI communicator of its own.

    Ranks in its methods are ranks of the group. Every method that communicates returns an
    MPIWork at once; all ranks of a group have to call the collective ones in the same order.
    What all of them must agree on is compared before anything is communicated.
    """

    # ---- reductions ------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: AllreduceOptions | None = None) -> MPIWork:
        """The tensor (one) becomes its reduction over all ranks.

        SUM, AVG, PRODUCT, MIN, MAX, and BAND, BOR, BXOR of integers and bools. float16 and
        bfloat16 are accumulated in float32 and rounded once. Sparse tensors (COO, in host memory)
        have SUM and AVG.
        Raises TypeError for an op that the dtype or layout does not have.
        """
        tensor = tensors[0] if len(tensors) == 1 else None
        if tensor is not None and tensor.layout is torch.sparse_coo and tensor.is_cpu:
            opts = opts or AllreduceOptions()
            how = reduction(tensor.dtype, opts.reduceOp)
            sparse.check(tensor, how)
            body = partial(sparse.all_reduce, self._at, tensor, how)
            key = ("all_reduce of sparse tensors", how.name, tensor.dtype, tuple(tensor.shape))
            moves = [tensor._indices(), tensor._values()]
            return self._together(key, body, [tensor], opts, moves=moves)
        return self._all_reduce("all_reduce", [_one("all_reduce", tensors)], opts)

    def allreduce_coalesced(
        self, tensors: list[Tensor], opts: AllreduceOptions | None = None
    ) -> MPIWork:
        """Several tensors, each reduced as by `allreduce`, in one operation."""
        _alike("all_reduce_coalesced", tensors)
        return self._all_reduce("all_reduce_coalesced", tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: ReduceOptions) -> MPIWork:
        """As `allreduce`, on rank `opts.rootRank` alone; the others keep what they have."""
        tensor = _one("reduce", tensors)
        how = reduction(tensor.dtype, opts.reduceOp)
        root = self._root(opts.rootRank)
        body = partial(operations.reduce, self._at, tensor, root, how)
        key = ("reduce", how.name, tensor.dtype, shape(tensor), root)
        return self._together(key, body, [tensor], opts)

    def reduce_scatter(
        self,
        outputs: list[Tensor],
        inputs: list[list[Tensor]],
        opts: ReduceScatterOptions | None = None,
    ) -> MPIWork:
        """outputs[0] becomes the reduction of inputs[0][this rank]; sizes may differ by rank."""
        opts = opts or ReduceScatterOptions()
        output = _one("reduce_scatter", outputs)
        tensors = _parts("reduce_scatter", inputs, self.size())
        _alike("reduce_scatter", [output, *tensors])
        _whole("reduce_scatter", tensors[self.rank()], output)
        how = reduction(output.dtype, opts.reduceOp)
        body = partial(operations.reduce_scatter, self._at, output, tensors, how)
        key = ("reduce_scatter", how.name, output.dtype, *map(shape, tensors))
        return self._together(key, body, [output], opts, moves=tensors)

    def reduce_scatter_single(
        self, output: Tensor, tensor: Tensor, opts: ReduceScatterOptions | None = None
    ) -> MPIWork:
        """Reduce and scatter one tensor of ranks * output.numel() elements."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: ReduceScatterOptions | None = None
    ) -> MPIWork:
        """Several `reduce_scatter_single` in one operation."""
        opts = opts or ReduceScatterOptions()
        key: list[object] = ["reduce_scatter_single"]
        bodies = []
        for output, tensor in zip(outputs, inputs, strict=True):
            _alike("reduce_scatter_single", [output, tensor])
            _whole("reduce_scatter_single", tensor, output, self.size())
            how = reduction(output.dtype, opts.reduceOp)
            call = operations.reduce_scatter_single
            bodies.append(partial(call, self._at, output, tensor, how))
            key += [how.name, output.dtype, shape(output)]
        return self._together(tuple(key), _all(bodies), outputs, opts, moves=inputs)

    # ---- one to all, all to one ------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor], opts: BroadcastOptions) -> MPIWork:
        """The tensor becomes that of rank `opts.rootRank`."""
        tensor, root = _one("broadcast", tensors), self._root(opts.rootRank)
        body = partial(operations.broadcast, self._at, tensor, root)
        key = ("broadcast", tensor.dtype, shape(tensor), root)
        return self._together(key, body, [tensor], opts)

    def gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: GatherOptions
    ) -> MPIWork:
        """On rank `opts.rootRank` outputs[0][r] becomes rank r's tensor; elsewhere empty."""
        tensor, root = _one("gather", inputs), self._root(opts.rootRank)
        targets: list[Tensor] = []
        if self.rank() == root:
            targets = _parts("gather", outputs, self.size())
            _alike("gather", [tensor, *targets])
            _whole("gather", tensor, targets[root])
        body = partial(operations.gather, self._at, targets, tensor, root)
        key = ("gather", tensor.dtype, root)
        return self._together(key, body, targets, opts, moves=targets or [tensor])

    def gather_single(self, output: Tensor, tensor: Tensor, opts: GatherOptions) -> MPIWork:
        """On rank `opts.rootRank` `output` (ranks * tensor.numel() elements) becomes all ranks'
        tensors end to end; elsewhere it is left alone. torch has it from 2.15 on.
        """
        root = self._root(opts.rootRank)
        here = self.rank() == root
        _alike("gather_single", [tensor, output] if here else [tensor])
        if here:
            _whole("gather_single", output, tensor, self.size())
        body = partial(operations.gather_single, self._at, output, tensor, root)
        key = ("gather_single", tensor.dtype, shape(tensor), root)
        targets = [output] if here else []
        return self._together(key, body, targets, opts, moves=targets or [tensor])

    def scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: ScatterOptions
    ) -> MPIWork:
        """outputs[0] becomes inputs[0][this rank] of rank `opts.rootRank`; elsewhere empty."""
        output, root = _one("scatter", outputs), self._root(opts.rootRank)
        tensors: list[Tensor] = []
        if self.rank() == root:
            tensors = _parts("scatter", inputs, self.size())
            _alike("scatter", [output, *tensors])
            _whole("scatter", tensors[root], output)
        body = partial(operations.scatter, self._at, output, tensors, root)
        key = ("scatter", output.dtype, root)
        return self._together(key, body, [output], opts, moves=tensors or [output])

    # ---- all to all ------------------------------------------------------------------------

    def allgather(
        self,
        outputs: list[list[Tensor]],
        inputs: list[Tensor],
        opts: AllgatherOptions | None = None,
    ) -> MPIWork:
        """outputs[0][r] becomes rank r's tensor, inputs[0] there; sizes may differ by rank."""
        return self.allgather_coalesced(outputs, inputs, opts)

    def allgather_coalesced(
        self,
        outputs: list[list[Tensor]],
        inputs: list[Tensor],
        opts: AllgatherOptions | None = None,
    ) -> MPIWork:
        """Gather several tensors: outputs[i][r] becomes inputs[i] of rank r."""
        key: list[object] = ["all_gather"]
        bodies = []
        for targets, tensor in zip(outputs, inputs, strict=True):
            _parts("all_gather", [targets], self.size())
            _alike("all_gather", [tensor, *targets])
            _whole("all_gather", tensor, targets[self.rank()])
            bodies.append(partial(operations.all_gather, self._at, targets, tensor))
            key += [tensor.dtype, tuple(map(shape, targets))]
        results = [target for targets in outputs for target in targets]
        return self._together(tuple(key), _all(bodies), results, opts)

    def all_gather_single(
        self, output: Tensor, tensor: Tensor, opts: AllgatherOptions | None = None
    ) -> MPIWork:
        """`output` (ranks * tensor.numel() elements) becomes all ranks' tensors end to end."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: AllgatherOptions | None = None
    ) -> MPIWork:
        """Several `all_gather_single` in one operation."""
        key: list[object] = ["all_gather_single"]
        bodies = []
        for output, tensor in zip(outputs, inputs, strict=True):
            _alike("all_gather_single", [output, tensor])
            _whole("all_gather_single", output, tensor, self.size())
            bodies.append(partial(operations.all_gather_single, self._at, output, tensor))
            key += [tensor.dtype, shape(tensor)]
        return self._together(tuple(key), _all(bodies), outputs, opts)

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: AllToAllOptions | None = None
    ) -> MPIWork:
        """inputs[r] goes to rank r, outputs[r] comes from rank r."""
        _parts("all_to_all", [outputs], self.size())
        _parts("all_to_all", [inputs], self.size())
        _alike("all_to_all", [*outputs, *inputs])
        _whole("all_to_all", inputs[self.rank()], outputs[self.rank()])
        body = partial(operations.all_to_all, self._at, outputs, inputs)
        key = ("all_to_all", inputs[0].dtype)
        moves = [*outputs, *inputs]
        even = _common(each.numel() for each in moves)
        return self._together(key, body, outputs, opts, moves=moves, even=even)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: AllToAllOptions | None = None,
    ) -> MPIWork:
        """Do so in two tensors cut along their first dimension; no sizes: equal parts."""
        _alike("all_to_all_single", [output, tensor])
        taken = _element_counts("all_to_all_single", output, output_split_sizes, self.size())
        given = _element_counts("all_to_all_single", tensor, input_split_sizes, self.size())
        body = partial(operations.all_to_all_single, self._at, output, tensor, taken, given)
        key = ("all_to_all_single", tensor.dtype)
        even = _common([*taken, *given])
        return self._together(key, body, [output], opts, moves=[output, tensor], even=even)

    def barrier(self, opts: BarrierOptions | None = None) -> MPIWork:
        """Complete when all ranks have called it; what they gave NCCL before is done then."""
        if self._nccl is not None:  # perhaps on some of the ranks only
            torch.cuda.synchronize()
        body = partial(operations.barrier, self._at)
        return self._together(("barrier",), body, [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have called it.

        Raises CommunicationTimeoutError, which names the ranks that did not come and says what
        they do, after `timeout` (the group's by default). It names all of them in any case.
        """
        limit = timeout.total_seconds() if timeout is not None else 0.0
        body = partial(operations.barrier, self._at)
        self._together(("monitored_barrier",), body, [], limit=limit).wait()

    # ---- point to point --------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> MPIWork:
        """Send to rank `to`; complete when the tensor may be written to again."""
        tensor, to = _one("send", tensors), self._root(to)
        body = partial(messages.send, self._at, tensor, to, tag)
        return self._between(f"send to {to}", body, tensor, [self._at.members[to]])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> MPIWork:
        """Receive from rank `source` a message of exactly as many elements."""
        tensor, source = _one("recv", tensors), self._root(source)
        body = partial(messages.receive, self._at, tensor, source, tag)
        return self._between(f"recv from {source}", body, tensor, [self._at.members[source]])

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> MPIWork:
        """Receive from any rank, with this tag; `source_rank()` of the work is the sender."""
        tensor = _one("recv", tensors)
        body = partial(messages.receive, self._at, tensor, MPI.ANY_SOURCE, tag)
        return self._between("recv from any", body, tensor, self._at.members)

    # Names that torch 2.7 to 2.12 use for the same calls.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]
    gather_into_tensor = gather_single  # of 2.15

    # ---- within ----------------------------------------------------------------------------

    def _all_reduce(
        self, call: str, tensors: list[Tensor], opts: AllreduceOptions | None
    ) -> MPIWork:
        opts = opts or AllreduceOptions()
        how = reduction(tensors[0].dtype, opts.reduceOp)
        body = partial(operations.all_reduce, self._at, tensors, how)
        key: list[object] = [call, how.name]
        for each in tensors:
            key += each.dtype, shape(each)
        return self._together(tuple(key), body, tensors, opts)


# ---- what a call must satisfy before it may wait for other ranks --------------------------------


def _alike(call: str, tensors: Sequence[Tensor]) -> None:
    """Raise unless all are strided tensors of one dtype and device, and there is at least one."""
    if not tensors:
        raise ValueError(f"{call}: no tensor given.")
    first = tensors[0]
    for tensor in tensors:
        if not (tensor.is_cpu or tensor.is_cuda):
            raise RuntimeError(
                f"{call}: the tensor is on {tensor.device}, but the mpi backend takes CPU tensors "
                "and CUDA tensors only. Move it with .cpu()."
            )
        if tensor.layout is not torch.strided:
            raise RuntimeError(f"{call}: needs dense tensors, not {tensor.layout}; use to_dense().")
        if tensor is first:
            continue
        if tensor.device != first.device:
            raise RuntimeError(f"{call}: devices differ: {first.device} and {tensor.device}.")
        if tensor.dtype != first.dtype:
            raise TypeError(f"{call}: dtypes differ: {first.dtype} and {tensor.dtype}.")


def _one(call: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return the only tensor of the list, which torch passes for every single-tensor call."""
    if len(tensors) != 1:
        raise ValueError(f"{call}: needs one tensor in its list, not {len(tensors)}.")
    _alike(call, tensors)
    return tensors[0]


def _parts(call: str, lists: Sequence[list[Tensor]], ranks: int) -> list[Tensor]:
    """Return the only list of the list, with one tensor for each rank."""
    if len(lists) != 1:
        raise ValueError(f"{call}: needs one list of tensors, not {len(lists)}.")
    if len(lists[0]) != ranks:
        raise ValueError(
            f"{call}: needs one tensor for each of the {ranks} ranks, not {len(lists[0])}."
        )
    return lists[0]


def _whole(call: str, large: Tensor, small: Tensor, times: int = 1) -> None:
    """Raise unless `large` has `times` as many elements as `small`."""
    if large.numel() != times * small.numel():
        factor = f"{times} times " if times > 1 else ""
        raise ValueError(
            f"{call}: a tensor of shape {tuple(large.shape)} must have {factor}as many elements as "
            f"one of shape {tuple(small.shape)}."
        )


def _element_counts(call: str, tensor: Tensor, rows: Sequence[int], ranks: int) -> list[int]:
    """Return the elements for each rank of a tensor cut along its first dimension into `rows`.

    No rows at all mean equal parts. Raises ValueError where the cuts do not fit the tensor.
    """
    length = tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if length % ranks:
            raise ValueError(f"{call}: {length} rows cannot be split evenly among {ranks} ranks.")
        rows = [length // ranks] * ranks
    if len(rows) != ranks or sum(rows) != length:
        raise ValueError(
            f"{call}: split sizes {list(rows)} do not fit {length} rows and {ranks} ranks."
        )
    row = tensor.numel() // length if length else 0
    return [each * row for each in rows]


def _common(counts: Iterable[int]) -> int:
    """The number that all of these are; -1 if they differ."""
    numbers = set(counts)
    return numbers.pop() if len(numbers) == 1 else -1


def _all(bodies: Sequence[Body]) -> Body:
    if len(bodies) == 1:
        return bodies[0]

    def body() -> None:
        for each in bodies:
            each()

    return body


def _finish() -> None:
    """Send CUDA tensors their way, and keep torch.compile out of the calls of a group."""
    for kind in (Membership, MPIGroup):
        for name, call in list(vars(kind).items()):
            if not isinstance(call, FunctionType):
                continue
            skip_when_compiling(call.__code__)
            if torch.version.cuda and kind is MPIGroup and name not in _NOT_ROUTED:
                call = routed(call, name)
                skip_when_compiling(call.__code__)
                setattr(kind, name, call)


_NOT_ROUTED = ("barrier", "monitored_barrier", "_all_reduce")

_finish()
