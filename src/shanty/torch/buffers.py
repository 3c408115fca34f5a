"""Tensors as MPI sees them: dense memory to read from or write to, copied only where it must be.

Tensors of any stride go in and out in their logical (row-major) order, since the other ranks'
strides may differ. Importing this module starts MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch.dtypes import word

LARGEST = 1 << 30
"""Bytes that one MPI call moves at most: counts have 32 bits on many, and some count bytes."""


aware = False
"""Whether MPI takes memory of a GPU."""


Message = tuple[Any, ...]
"""What mpi4py takes as a buffer: memory, perhaps counts, datatype. The memory is a bare address:
whoever makes it keeps the tensor until MPI is done.
"""


def spec(tensor: Tensor, datatype: MPI.Datatype | None = None) -> Message:
    """The memory of a dense tensor; moved as plain words unless a datatype is given."""
    return _memory(tensor), datatype if datatype is not None else word(tensor.dtype)


def vector(tensor: Tensor, counts: Sequence[int]) -> Message:
    """The same for the calls with one count (in elements) for each rank, laid end to end."""
    return _memory(tensor), counts, word(tensor.dtype)


def _memory(tensor: Tensor) -> MPI.buffer:
    if tensor.is_cuda:  # MPI knows nothing of streams
        torch.cuda.current_stream(tensor.device).synchronize()
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def pieces(dense: Tensor, largest: int | None = None) -> Sequence[Tensor]:
    """The elements in order, in parts of so many bytes at most, LARGEST by default: mostly one."""
    limit = LARGEST if largest is None else largest
    if dense.nbytes <= limit:
        return (dense,)
    return torch.split(dense.view(-1), limit // dense.itemsize)


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor's memory is its elements in logical order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def is_reachable(tensor: Tensor) -> bool:
    """Whether MPI takes memory where the tensor is; else it goes by way of pinned host memory."""
    return aware or not tensor.is_cuda


def readable(tensor: Tensor) -> Tensor:
    """A dense tensor with these elements where MPI can read it: itself, or a copy."""
    dense = tensor if is_dense(tensor) else tensor.resolve_conj().resolve_neg().contiguous()
    return dense if is_reachable(dense) else _room(dense.shape, dense).copy_(dense)


def writable(tensor: Tensor) -> Tensor:
    """Dense room for the elements of `tensor`: itself, or new memory for `settle` to copy."""
    if is_dense(tensor) and is_reachable(tensor):
        return tensor
    return _room(tensor.shape, tensor)


def _room(shape: Sequence[int], like: Tensor) -> Tensor:
    if is_reachable(like):
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return torch.empty(shape, dtype=like.dtype, pin_memory=like.is_cuda)


def settle(room: Tensor, tensor: Tensor) -> None:
    """Bring what was written to `room` into `tensor`, if it is not there already."""
    if room is not tensor:
        tensor.copy_(room)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all of them, end to end: a view where they lie so already."""
    view = as_one(tensors)
    if view is not None:
        return view
    return torch.cat([readable(each).reshape(-1) for each in tensors])


def room_for(tensors: Sequence[Tensor]) -> Tensor:
    """Dense room for the elements of all, end to end, for `spread` to copy where needed."""
    view = as_one(tensors)
    if view is not None:
        return view
    return _room((sum(each.numel() for each in tensors),), tensors[0])


def spread(room: Tensor, tensors: Sequence[Tensor]) -> None:
    """Bring the elements of `room` into the tensors, if they are not there already."""
    ends = accumulate(each.numel() for each in tensors)
    for tensor, end in zip(tensors, ends, strict=True):
        start = end - tensor.numel()
        piece = room[start:end]
        if tensor.numel() and piece.data_ptr() != tensor.data_ptr():
            tensor.copy_(piece.view(tensor.shape))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two dense tensors share memory, which MPI forbids for input and output."""
    start, begin = one.data_ptr(), other.data_ptr()
    return start < begin + other.nbytes and begin < start + one.nbytes


def apart(tensor: Tensor, output: Tensor) -> Tensor:
    """`tensor` to read from while `output` is written: a copy if they share memory."""
    return tensor.clone() if overlap(tensor, output) else tensor


def as_one(tensors: Sequence[Tensor]) -> Tensor | None:
    """One flat view of tensors that lie end to end in one storage, as chunks do; else None."""
    first = tensors[0]
    if not all(map(is_dense, tensors)) or not is_reachable(first):
        return None
    for left, right in pairwise(tensors):
        if right.data_ptr() != left.data_ptr() + left.nbytes:
            return None
        if right.untyped_storage().data_ptr() != left.untyped_storage().data_ptr():
            return None
    total = sum(each.numel() for each in tensors)
    return first.as_strided((total,), (1,), first.storage_offset())
