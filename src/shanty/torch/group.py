"""`MPIGroup`: the calls that torch.distributed and DistributedDataParallel make of a group.

Each call checks its tensors in the caller, where a mistake belongs, then hands the work to the
communication thread and returns at once. Importing this module starts MPI.
"""

# torch declares each call in several overloads; it makes, and this class takes, the one with opts.
# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

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

from shanty.torch import collectives
from shanty.torch.checks import alike, element_counts, one, parts, whole
from shanty.torch.dtypes import reduction
from shanty.torch.identity import Identity
from shanty.torch.work import CommunicationError, MPIWork
from shanty.torch.worker import WORKER, Body, Worker


class _Options(Protocol):
    timeout: timedelta


class MPIGroup(Identity):
    """A process group over an MPI communicator of its own.

    Ranks in its methods are ranks of the group. Every method that communicates returns an
    MPIWork at once; all ranks of a group have to call the collective ones in the same order.
    """

    def __init__(self, comm: MPI.Intracomm, worker: Worker, limit: float) -> None:
        super().__init__(comm.rank, comm.size, limit)
        self._comm = comm
        self._worker = worker
        self._open = True
        self._coalescing: list[MPIWork] | None = None
        worker.enter()

    @classmethod
    def form(cls, world: MPI.Intracomm, ranks: list[int], tag: int, limit: float) -> MPIGroup:
        """The group of these ranks of `world` in this order, all of them when empty.

        Collective over its members. tag: of MPI_Comm_create_group. limit: seconds that a wait
        lasts at most, this one too.
        """
        made: list[MPI.Intracomm] = []

        def body() -> None:
            comm = world.Create_group(world.group.Incl(ranks), tag) if ranks else world.Dup()
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            made.append(comm)

        call = f"forming the group of ranks {ranks}" if ranks else "forming the group of all ranks"
        place = f"rank {world.rank} of {world.size}"
        WORKER.submit(MPIWork(WORKER, call, place, body, [], limit)).wait()
        return cls(made[0], WORKER, limit)

    # ---- reductions ------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: AllreduceOptions | None = None) -> MPIWork:
        """The tensor (one) becomes its reduction over all ranks.

        SUM, AVG, PRODUCT, MIN, MAX, and BAND, BOR, BXOR of integers and bools. float16 and
        bfloat16 are accumulated in float32 and rounded once.
        Raises TypeError for an op that the dtype does not have.
        """
        return self._all_reduce("all_reduce", [one("all_reduce", tensors)], opts)

    def allreduce_coalesced(
        self, tensors: list[Tensor], opts: AllreduceOptions | None = None
    ) -> MPIWork:
        """Several tensors, each reduced as by `allreduce`, in one operation."""
        return self._all_reduce("all_reduce_coalesced", tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: ReduceOptions) -> MPIWork:
        """As `allreduce`, on rank `opts.rootRank` alone; the others keep what they have."""
        tensor = one("reduce", tensors)
        how = reduction(tensor.dtype, opts.reduceOp)
        body = partial(collectives.reduce, self._comm, tensor, self._root(opts.rootRank), how)
        return self._submit("reduce", body, [tensor], opts)

    def reduce_scatter(
        self,
        outputs: list[Tensor],
        inputs: list[list[Tensor]],
        opts: ReduceScatterOptions | None = None,
    ) -> MPIWork:
        """outputs[0] becomes the reduction of inputs[0][this rank]; sizes may differ by rank."""
        opts = opts or ReduceScatterOptions()
        output = one("reduce_scatter", outputs)
        tensors = parts("reduce_scatter", inputs, self.size())
        alike("reduce_scatter", [output, *tensors])
        whole("reduce_scatter", tensors[self.rank()], output)
        how = reduction(output.dtype, opts.reduceOp)
        body = partial(collectives.reduce_scatter, self._comm, output, tensors, how)
        return self._submit("reduce_scatter", body, [output], opts)

    def reduce_scatter_single(
        self, output: Tensor, tensor: Tensor, opts: ReduceScatterOptions | None = None
    ) -> MPIWork:
        """The same from one tensor of ranks * output.numel() elements."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: ReduceScatterOptions | None = None,
    ) -> MPIWork:
        """Several `reduce_scatter_single` in one operation."""
        opts = opts or ReduceScatterOptions()
        bodies = []
        for output, tensor in zip(outputs, inputs, strict=True):
            alike("reduce_scatter_single", [output, tensor])
            whole("reduce_scatter_single", tensor, output, self.size())
            how = reduction(output.dtype, opts.reduceOp)
            call = collectives.reduce_scatter_single
            bodies.append(partial(call, self._comm, output, tensor, how))
        return self._submit("reduce_scatter_single", _all(bodies), outputs, opts)

    # ---- one to all, all to one ------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor], opts: BroadcastOptions) -> MPIWork:
        """The tensor becomes that of rank `opts.rootRank`."""
        tensor = one("broadcast", tensors)
        body = partial(collectives.broadcast, self._comm, tensor, self._root(opts.rootRank))
        return self._submit("broadcast", body, [tensor], opts)

    def gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: GatherOptions
    ) -> MPIWork:
        """On rank `opts.rootRank` outputs[0][r] becomes rank r's tensor; elsewhere empty."""
        tensor, root = one("gather", inputs), self._root(opts.rootRank)
        targets: list[Tensor] = []
        if self.rank() == root:
            targets = parts("gather", outputs, self.size())
            alike("gather", [tensor, *targets])
            whole("gather", tensor, targets[root])
        body = partial(collectives.gather, self._comm, targets, tensor, root)
        return self._submit("gather", body, targets, opts)

    def scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: ScatterOptions
    ) -> MPIWork:
        """outputs[0] becomes inputs[0][this rank] of rank `opts.rootRank`; elsewhere empty."""
        output, root = one("scatter", outputs), self._root(opts.rootRank)
        tensors: list[Tensor] = []
        if self.rank() == root:
            tensors = parts("scatter", inputs, self.size())
            alike("scatter", [output, *tensors])
            whole("scatter", tensors[root], output)
        body = partial(collectives.scatter, self._comm, output, tensors, root)
        return self._submit("scatter", body, [output], opts)

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
        """The same for several tensors: outputs[i][r] becomes inputs[i] of rank r."""
        bodies = []
        for targets, tensor in zip(outputs, inputs, strict=True):
            parts("all_gather", [targets], self.size())
            alike("all_gather", [tensor, *targets])
            whole("all_gather", tensor, targets[self.rank()])
            bodies.append(partial(collectives.all_gather, self._comm, targets, tensor))
        results = [target for targets in outputs for target in targets]
        return self._submit("all_gather", _all(bodies), results, opts)

    def all_gather_single(
        self, output: Tensor, tensor: Tensor, opts: AllgatherOptions | None = None
    ) -> MPIWork:
        """`output` (ranks * tensor.numel() elements) becomes all ranks' tensors end to end."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: AllgatherOptions | None = None
    ) -> MPIWork:
        """Several `all_gather_single` in one operation."""
        bodies = []
        for output, tensor in zip(outputs, inputs, strict=True):
            alike("all_gather_single", [output, tensor])
            whole("all_gather_single", output, tensor, self.size())
            bodies.append(partial(collectives.all_gather_single, self._comm, output, tensor))
        return self._submit("all_gather_single", _all(bodies), outputs, opts)

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: AllToAllOptions | None = None
    ) -> MPIWork:
        """inputs[r] goes to rank r, outputs[r] comes from rank r."""
        parts("all_to_all", [outputs], self.size())
        parts("all_to_all", [inputs], self.size())
        alike("all_to_all", [*outputs, *inputs])
        whole("all_to_all", inputs[self.rank()], outputs[self.rank()])
        body = partial(collectives.all_to_all, self._comm, outputs, inputs)
        return self._submit("all_to_all", body, outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: AllToAllOptions | None = None,
    ) -> MPIWork:
        """The same in two tensors cut along their first dimension; no sizes: equal parts."""
        alike("all_to_all_single", [output, tensor])
        taken = element_counts("all_to_all_single", output, output_split_sizes, self.size())
        given = element_counts("all_to_all_single", tensor, input_split_sizes, self.size())
        if not output_split_sizes and not input_split_sizes:
            taken = given = []
        body = partial(collectives.all_to_all_single, self._comm, output, tensor, taken, given)
        return self._submit("all_to_all_single", body, [output], opts)

    def barrier(self, opts: BarrierOptions | None = None) -> MPIWork:
        """Complete when all ranks have called it."""
        body = partial(collectives.barrier, self._comm)
        return self._submit("barrier", body, [], opts)

    # ---- point to point --------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> MPIWork:
        """Send to rank `to`; complete when the tensor may be written to again."""
        tensor = one("send", tensors)
        body = partial(collectives.send, self._comm, tensor, self._root(to), tag)
        return self._submit(f"send to {to}", body, [tensor])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> MPIWork:
        """Receive from rank `source` a message of exactly as many elements."""
        tensor = one("recv", tensors)
        body = partial(collectives.receive, self._comm, tensor, self._root(source), tag)
        return self._submit(f"recv from {source}", body, [tensor])

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> MPIWork:
        """Receive from whoever sends with this tag; `source_rank()` of the work says who."""
        tensor = one("recv", tensors)
        body = partial(collectives.receive, self._comm, tensor, MPI.ANY_SOURCE, tag)
        return self._submit("recv from any", body, [tensor])

    # Names that torch 2.7 to 2.12 use for the same calls.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    # ---- its end ---------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish what was submitted, free the communicator, and with the last group end the
        thread. Does not wait where an operation has run past its limit. Idempotent.
        """
        if not self._open:
            return
        self._open = False
        if not self._worker.is_stuck():

            def body() -> None:
                if self._worker.drain():
                    self._comm.Free()

            work = MPIWork(self._worker, "destroying", self, body, [], self._limit)
            self._worker.submit(work).wait()
        self._worker.leave()

    def abort(self) -> None:
        """Give the group up without a word to the other ranks; its communicator stays."""
        if self._open:
            self._open = False
            self._worker.leave()

    # ---- within ----------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> MPIWork:
        """One work for all operations since `_start_coalescing`; fails if one of them did."""
        works, self._coalescing = self._coalescing or [], None

        def body() -> None:
            for work in works:
                work.wait()

        results = [tensor for work in works for tensor in work.tensors]
        return self._submit("coalesced operations", body, results)

    def _all_reduce(
        self, call: str, tensors: list[Tensor], opts: AllreduceOptions | None
    ) -> MPIWork:
        opts = opts or AllreduceOptions()
        alike(call, tensors)
        how = reduction(tensors[0].dtype, opts.reduceOp)
        body = partial(collectives.all_reduce, self._comm, tensors, how)
        return self._submit(call, body, tensors, opts)

    def _root(self, rank: int) -> int:
        if not 0 <= rank < self.size():
            raise ValueError(f"rank {rank} is not in a group of {self.size()}.")
        return rank

    def _submit(
        self, call: str, body: Body, tensors: list[Tensor], opts: _Options | None = None
    ) -> MPIWork:
        if not self._open:
            raise CommunicationError(f"{call} on {self}: the group was destroyed.")
        asked = opts.timeout.total_seconds() if opts is not None else 0.0
        limit = asked if asked > 0 else self._limit
        work = MPIWork(self._worker, call, self, body, tensors, limit)
        self._operations += 1
        if self._coalescing is not None:
            self._coalescing.append(work)
        return self._worker.submit(work)


def _all(bodies: Sequence[Body]) -> Body:
    """One body that runs several."""
    if len(bodies) == 1:
        return bodies[0]

    def body() -> None:
        for each in bodies:
            each()

    return body
