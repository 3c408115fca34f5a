"""DistributedDataParallel over the mpi backend: all ranks must wrap the same model.

torch compares the shapes of the parameters by their positions, and only the ranks other than 0 see
an error. Parameters of one shape in another order pass, and are then averaged with each other.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from shanty.torch.identity import Identity
from shanty.torch.work import MismatchError


def register() -> None:
    """Compare models where DistributedDataParallel is constructed. Idempotent."""
    original = DistributedDataParallel.__init__
    if not hasattr(original, "shanty"):
        around = _comparing(original)
        vars(around)["shanty"] = True
        DistributedDataParallel.__init__ = around  # type: ignore[method-assign]


def _comparing(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # torch says what is wrong with the arguments
            given = {}
        group, mesh = given.get("process_group"), given.get("device_mesh")
        if group is None:
            group = c10d.GroupMember.WORLD if mesh is None else mesh.get_group(mesh_dim=0)
        module = given.get("module")
        compared = isinstance(group, Identity) and isinstance(module, torch.nn.Module)
        if compared and given.get("init_sync", True):
            _compare(module, group)
        original(self, *args, **kwargs)

    return construct


def _compare(module: Any, group: Any) -> None:
    """Raise MismatchError, on all ranks, unless their models have the same parameters in order."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    trained = [
        (name, each)
        for name, each in module.named_parameters()
        if each.requires_grad and name not in ignored
    ]
    if any(is_lazy(each) for _, each in trained):
        return  # an error of torch's
    parameters = [
        f"{name} {tuple(each.shape)} {str(each.dtype).removeprefix('torch.')}"
        for name, each in trained
    ]
    made = hashlib.blake2b("\n".join(parameters).encode(), digest_size=7).digest()
    number = torch.tensor([int.from_bytes(made, "big")], device="cpu")
    numbers = [torch.zeros_like(number) for _ in range(group.size())]
    dist.all_gather(numbers, number, group=group)
    if len({each.item() for each in numbers}) == 1:
        return
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, parameters, group=group)
    first = everyone[0]
    rank, other = next((rank, each) for rank, each in enumerate(everyone) if each != first)
    place = next(
        (i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b),
        min(len(first), len(other)),
    )
    ours, theirs = ((each[place : place + 1] or ["missing"])[0] for each in (first, other))
    raise MismatchError(
        f"DistributedDataParallel: the models of ranks 0 and {rank} differ: parameter {place} is "
        f"{ours} on rank 0 and {theirs} on rank {rank}. Gradients are averaged by position. "
        "Build the same model on all ranks, and create its modules in the same order (from a "
        "list, not from a set)."
    )
