"""`ddp`: DistributedDataParallel that goes on when ranks are lost. Importing it starts no MPI."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from shanty.collectives import survivors

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

Model = TypeVar("Model", bound=DistributedDataParallel)


def ddp(model: Model) -> Model:
    """Let training with this DistributedDataParallel go on when ranks are lost; returns it.

    In an elastic run (`shanty run --elastic`) a step during which a rank is lost is completed by
    the ranks that are left: each still has its own gradients, and `backward()` averages them over
    these ranks. Neither batches nor the model's pass over them are repeated. In other runs nothing
    changes.

    The process group must be that of all ranks, of the backend "mpi". With gradient_as_bucket_view
    a step makes a copy of the gradients. Raises ValueError for another group, for NCCL, and for
    a model that has a communication hook.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"elastic.ddp takes a DistributedDataParallel, not {type(model).__name__}.")
    if survivors.is_elastic():
        _Elastic(model)
    return model


class _Elastic:
    """What makes a model elastic: it stands behind the model's communication hook."""

    def __init__(self, model: Any) -> None:
        from shanty.torch.devices import Way  # these start MPI
        from shanty.torch.elastic_group import ElasticGroup

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
        if group.gpus.way is Way.NCCL:
            raise ValueError(
                "elastic.ddp: NCCL does not outlive a lost rank. SHANTY_CUDA=staged sends "
                "gradients by MPI."
            )
        self._group = group
        self._copies = model.gradient_as_bucket_view
        self._static = model.static_graph
        self._maps = model.find_unused_parameters and not self._static
        self._average = dist.AllreduceOptions()
        self._average.reduceOp = dist.ReduceOp.AVG  # type: ignore[assignment]
        self._passes = 0
        self._reducer = model.reducer
        self._prepare, self._send_buffers = model._pre_forward, model._sync_buffers
        model._pre_forward, model._sync_buffers = self._pre_forward, self._sync_buffers
        model.register_comm_hook(self, lambda state, bucket: state.reduce(bucket))
        group.arm()

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket: the hook of DistributedDataParallel.

        The gradients themselves stay what they are until all ranks have the result, unless they
        are views of the bucket: then a copy of it is averaged.
        """
        own = bucket.buffer()
        if self._copies or own.is_sparse:
            copy = own.clone()
            future = self._group.part(copy, self._average, lambda: copy.copy_(own))
        else:
            restore = partial(_fill, bucket.gradients(), bucket.parameters())
            future = self._group.part(own, self._average, restore)
        if bucket.is_last():  # all of this rank's gradients are there
            self._group.average_gradients()
            self._passes += 1
            if self._maps:
                self._group.expect_map()
        return future

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._group.begin_pass()
        if torch.is_grad_enabled() and self._passes == 1:  # the ranks agree on buckets, once
            self._group.attempt(self._reducer._rebuild_buckets)
            self._passes += 1
        if self._static and not self._passes:
            self._group.expect_map()  # which comes first in this pass, and in no other
        return self._prepare(*inputs, **kwargs)

    def _sync_buffers(self) -> None:
        self._group.attempt(self._send_buffers)


def _fill(bucket: list[Tensor], parameters: list[Tensor]) -> None:
    """Make the parts of a bucket this rank's own gradients again, as torch does."""
    for part, parameter in zip(bucket, parameters, strict=True):
        if parameter.grad is None:  # not used here
            part.zero_()
        else:
            part.copy_(parameter.grad)
