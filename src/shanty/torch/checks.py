"""What a call must satisfy before it may wait for other ranks: devices, dtypes, counts.

A mistake found here is an error in the line that made it, on the rank that made it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def alike(call: str, tensors: Sequence[Tensor]) -> None:
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


def one(call: str, tensors: Sequence[Tensor]) -> Tensor:
    """The only tensor of the list, which torch passes for every single-tensor call."""
    if len(tensors) != 1:
        raise ValueError(f"{call}: needs one tensor in its list, not {len(tensors)}.")
    alike(call, tensors)
    return tensors[0]


def parts(call: str, lists: Sequence[list[Tensor]], ranks: int) -> list[Tensor]:
    """The only list of the list, with one tensor for each rank."""
    if len(lists) != 1:
        raise ValueError(f"{call}: needs one list of tensors, not {len(lists)}.")
    if len(lists[0]) != ranks:
        raise ValueError(
            f"{call}: needs one tensor for each of the {ranks} ranks, not {len(lists[0])}."
        )
    return lists[0]


def whole(call: str, large: Tensor, small: Tensor, times: int = 1) -> None:
    """Raise unless `large` has `times` as many elements as `small`."""
    if large.numel() != times * small.numel():
        factor = f"{times} times " if times > 1 else ""
        raise ValueError(
            f"{call}: a tensor of shape {tuple(large.shape)} must have {factor}as many elements as "
            f"one of shape {tuple(small.shape)}."
        )


def element_counts(call: str, tensor: Tensor, rows: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank of a tensor cut along its first dimension into `rows`.

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
