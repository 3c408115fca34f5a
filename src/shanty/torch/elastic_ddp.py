"""`ddp`: DistributedDataParallel that goes on when ranks are lost. Importing it starts no MPI."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from shanty.collectives import survivors

Model = TypeVar("Model", bound=DistributedDataParallel)


def ddp(model: Model) -> Model:
    """Let training with this DistributedDataParallel go on when ranks are lost; returns it.

    In an elastic run (`shanty run --elastic`) a step during which a rank is lost is completed by
    the ranks that are left: each has kept its gradients, and they are averaged over these ranks,
    within `backward()`. Batches, and the model's pass over them, are not repeated. In other runs
    nothing changes.

    The process group must be that of all ranks, of the backend "mpi". Keeps a copy of the
    gradients. ValueError where that does not fit, or where the model has a communication hook.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"elastic.ddp takes a DistributedDataParallel, not {type(model).__name__}.")
    if survivors.is_elastic():
        _Elastic(model)
    return model


class _Elastic:
    """What makes a model elastic: it stands behind the model's communication hook."""

    def __init__(self, model: Any) -> None:
        from shanty.torch.elastic_group import ElasticGroup  # starts MPI

        group = model.process_group
        if not isinstance(group, ElasticGroup):
            raise ValueError(
                "elastic.ddp: the model's process group must be that of all ranks, of the backend "
                '"mpi": dist.init_process_group("mpi"), and no process_group= or device_mesh= for '
                "DistributedDataParallel."
            )
        if model._comm_hooks:
            raise ValueError(
                "elastic.ddp: the model has a communication hook already (register_comm_hook), "
                "and an elastic one needs a hook of its own."
            )
        if group.needs_nccl:
            raise ValueError(
                "elastic.ddp: NCCL does not outlive a lost rank. SHANTY_CUDA=staged sends "
                "gradients by MPI."
            )
        self._group = group
        self._rooms: dict[int, Tensor] = {}  # by the bucket: for its result
        self._average = dist.AllreduceOptions()
        self._average.reduceOp = dist.ReduceOp.AVG  # type: ignore[assignment]
        self._passes = 0
        self._reducer = model.reducer
        self._prepare, self._send_buffers = model._pre_forward, model._sync_buffers
        model._pre_forward, model._sync_buffers = self._pre_forward, self._sync_buffers
        model.register_comm_hook(self, lambda state, bucket: state.reduce(bucket))
        group.arm()

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket out of place: the hook of DistributedDataParallel."""
        own, room = bucket.buffer(), self._rooms.get(bucket.index())
        fits = room is not None and (room.shape, room.dtype) == (own.shape, own.dtype)
        part = self._group.part(own, self._average, room if fits and not own.is_sparse else None)
        self._rooms[bucket.index()] = part.result_tensor
        self._passes += bucket.is_last()
        return part.get_future()

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._group.begin_pass()
        if self._passes == 1 and torch.is_grad_enabled():  # the ranks agree on buckets, once
            self._group.attempt(self._reducer._rebuild_buckets)
            self._passes += 1
        return self._prepare(*inputs, **kwargs)

    def _sync_buffers(self) -> None:
        self._group.attempt(self._send_buffers)
