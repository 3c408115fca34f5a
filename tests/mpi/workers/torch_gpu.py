"""The calls of torch_collectives.py with tensors on GPUs. Started through ../test_torch_gpu.py,
with SHANTY_CUDA saying which way.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
import torch_collectives as plain
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import shanty.torch  # noqa: F401

on_cpu = plain.data
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def data(*arguments: object, **more: object) -> Tensor:
    """As torch_collectives makes it, brought to this rank's GPU."""
    with torch.device("cpu"):
        return on_cpu(*arguments, **more).cuda()


def wide(tensor: Tensor, inner: object = plain.wide) -> np.ndarray:
    return inner(tensor.cpu())


def check_calls() -> None:
    if os.environ["SHANTY_CUDA"] == "nccl":  # it has fewer dtypes, ops and layouts than MPI
        plain.FLOATS, plain.INTEGERS, plain.MOVED = DTYPES, [torch.int32], DTYPES
    plain.data, plain.wide = data, wide
    with torch.device("cuda"):
        for check in (
            plain.check_all_reduce,
            plain.check_broadcast,
            plain.check_all_gather_into_tensor,
        ):
            check()


def check_ddp() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1).cuda())
    model(torch.full((2, 8), float(dist.get_rank() + 1)).cuda()).sum().backward()
    mean = sum(2 * (rank + 1) for rank in plain.ranks()) / len(plain.ranks())
    torch.testing.assert_close(model.module.weight.grad.cpu(), torch.full((1, 8), mean))


def check_order_of_streams() -> None:
    """A call comes after what the stream was given before, and before what it is given next."""
    large = torch.ones(1 << 24, device="cuda")
    for _ in range(20):
        large.mul_(1.0)
    work = dist.all_reduce(large.fill_(2.0), async_op=True)
    work.wait()
    assert torch.all(large == 2.0 * dist.get_world_size())
    dist.barrier()


def begin() -> None:
    local = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group("mpi")
