"""`KERNELS`: torch's tensors for `shanty.collectives`, and its reductions. Starts MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from shanty.collectives import kernels
from shanty.collectives.kernels import Reduction
from shanty.torch.work import writing

_COMBINED: dict[str, Callable[[list[Tensor], list[Tensor]], None]] = {
    "SUM": torch._foreach_add_,
    "AVG": torch._foreach_add_,
    "PRODUCT": torch._foreach_mul_,
    "MIN": torch._foreach_minimum_,
    "MAX": torch._foreach_maximum_,
}


class _TensorKernels(kernels.Kernels):
    """For tensors in host memory and on GPUs. aware: whether MPI takes memory of a GPU."""

    aware = False

    def kind(self, dtype: torch.dtype) -> str:
        return str(dtype).removeprefix("torch.")

    def device(self, tensor: Tensor) -> str:
        return "cpu" if tensor.is_cpu else tensor.device.type

    def address(self, tensor: Tensor) -> int:
        if tensor.is_cuda:  # MPI knows nothing of streams
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor.data_ptr()

    # ---- memory ------------------------------------------------------------------------------

    def readable(self, tensor: Tensor) -> Tensor:
        dense = tensor if _is_dense(tensor) else tensor.resolve_conj().resolve_neg().contiguous()
        return dense if self.reachable(dense) else self._room(dense.shape, dense).copy_(dense)

    def writable(self, tensor: Tensor) -> Tensor:
        if _is_dense(tensor) and self.reachable(tensor):
            return tensor
        return self._room(tensor.shape, tensor)

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        view = self._as_one(tensors)
        if view is not None:
            return view
        return torch.cat([self.readable(each).reshape(-1) for each in tensors])

    def room_for(self, tensors: Sequence[Tensor]) -> Tensor:
        view = self._as_one(tensors)
        if view is not None:
            return view
        return self._room((sum(each.numel() for each in tensors),), tensors[0])

    def empty(self, shape: Sequence[int], dtype: Any, near: Tensor | str = "cpu") -> Tensor:
        kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        if isinstance(near, Tensor):
            return near.new_empty(shape, dtype=kind)
        return torch.empty(shape, dtype=kind, device=near)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def view(
        self, memory: memoryview, dtype: torch.dtype, begin: int, shape: Sequence[int]
    ) -> Tensor:
        every = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)  # which keeps it
        return every[begin : begin + torch.Size(shape).numel()].view(shape)

    def shaped(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        return tensor.view(shape)

    def flat(self, tensor: Tensor) -> Tensor:
        return tensor.view(-1)

    def split(self, tensor: Tensor, counts: Sequence[int] | int) -> Sequence[Tensor]:
        if isinstance(counts, int):
            return torch.split(tensor, counts) if len(tensor) > counts else (tensor,)
        return torch.split_with_sizes(tensor, counts)

    def rows(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.unbind()

    def copy(self, into: Tensor, tensor: Tensor) -> None:
        into.copy_(tensor)

    def copy_all(self, into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        torch._foreach_copy_(into, tensors)  # type: ignore[arg-type]  # lists they are

    def clone(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    # ---- arithmetic --------------------------------------------------------------------------

    def convert(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.to(getattr(torch, dtype))

    def scale(self, tensors: Sequence[Tensor], factor: Any) -> None:
        for tensor in tensors:
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.mul_(factor)
            else:
                tensor.copy_(tensor.to(torch.float64).mul_(factor))

    def divide(self, tensors: Sequence[Tensor], ranks: int) -> None:
        if tensors[0].is_floating_point() or tensors[0].is_complex():
            if ranks & (ranks - 1):
                torch._foreach_div_(tensors, ranks)  # type: ignore[call-overload]  # a list it is
            else:  # a power of 2: equal to the last bit, in half of the time
                torch._foreach_mul_(tensors, 1 / ranks)  # type: ignore[call-overload]
            return
        for each in tensors:
            each.div_(ranks, rounding_mode="trunc")

    def combine(self, name: str, totals: list[Tensor], terms: list[Tensor]) -> None:
        _COMBINED[name](totals, terms)

    def product(self, one: Tensor, two: Tensor) -> float:
        return torch.dot(one.reshape(-1).double(), two.reshape(-1).double()).item()

    # ---- devices -----------------------------------------------------------------------------

    def writing(self) -> AbstractContextManager[object]:
        return writing()

    def finish(self) -> None:
        torch.cuda.current_stream().synchronize()

    # ---- within ------------------------------------------------------------------------------

    def reachable(self, tensor: Tensor) -> bool:
        """Return whether MPI takes memory where the tensor is; else it goes by pinned memory."""
        return self.aware or not tensor.is_cuda

    def _room(self, shape: Sequence[int], like: Tensor) -> Tensor:
        if self.reachable(like):
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        return torch.empty(shape, dtype=like.dtype, pin_memory=like.is_cuda)

    def _as_one(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """One flat view of tensors that lie end to end in one storage, as chunks do; else None."""
        first = tensors[0]
        if not all(map(_is_dense, tensors)) or not self.reachable(first):
            return None
        for left, right in pairwise(tensors):
            if right.data_ptr() != left.data_ptr() + left.nbytes:
                return None
            if right.untyped_storage().data_ptr() != left.untyped_storage().data_ptr():
                return None
        total = sum(each.numel() for each in tensors)
        return first.as_strided((total,), (1,), first.storage_offset())


KERNELS = _TensorKernels()


def reduction(dtype: torch.dtype, op: ReduceOp | ReduceOp.RedOpType) -> Reduction:
    """Return the way to reduce `dtype` by `op`. Raises TypeError where that has no meaning here."""
    # Options carry a ReduceOp around the enumeration's member, which is slow to hash and compare.
    kind: Any = getattr(op, "op", op)
    key = dtype, kind.value
    found = _known.get(key)
    if found is None:
        name = str(kind).rpartition(".")[2]
        found = _known[key] = kernels.reduction(dtype, name, KERNELS)
    if found.name == "PREMUL_SUM":  # its factor is where only pickling looks
        return replace(found, factor=op.__getstate__()[1])  # type: ignore[index]
    return found


_known: dict[tuple[torch.dtype, int], Reduction] = {}


def _is_dense(tensor: Tensor) -> bool:
    """Return true if the tensor's memory is its elements in logical order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
