"""Adasum: a sum of gradients that does not grow where they point the same way. Starts MPI.

Two vectors a and b are combined to (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b: their sum where they
are orthogonal, their mean where they are equal; many are combined in a binary tree, each tensor by
itself. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import Tensor

from shanty.torch import buffers
from shanty.torch.meeting import Channel

_TAG = 1


def all_reduce(at: Channel, tensors: Sequence[Tensor]) -> None:
    """Each tensor becomes the adaptive sum of all ranks' versions, the same on all of them.

    The number of ranks must be a power of two. Half precision is combined in float32, and the
    products are summed up in float64.
    """
    if at.size & (at.size - 1):
        raise ValueError(f"Adasum needs a power of two of ranks, not {at.size}.")
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise TypeError(f"Adasum needs floating point numbers, not {tensor.dtype}.")
        wide = torch.float32 if tensor.itemsize < 4 else tensor.dtype
        own = tensor.to("cpu", wide, copy=True).contiguous()
        other = torch.empty_like(own)
        distance = 1
        while distance < at.size:
            _swap(at, own, other, at.rank ^ distance)
            # The same order of operands on both sides, so that both get the same bits.
            pair = (own, other) if not at.rank & distance else (other, own)
            own = combine(*pair)
            distance *= 2
        tensor.copy_(own)


def combine(a: Tensor, b: Tensor) -> Tensor:
    """The adaptive sum of two tensors."""
    x, y = a.reshape(-1).double(), b.reshape(-1).double()
    both, one, two = (torch.dot(*pair).item() for pair in ((x, y), (x, x), (y, y)))
    of_a = 1 - both / (2 * one) if one else 1.0
    of_b = 1 - both / (2 * two) if two else 1.0
    return a * of_a + b * of_b


def _swap(at: Channel, own: Tensor, other: Tensor, partner: int) -> None:
    requests = []
    for mine, theirs in zip(buffers.pieces(own), buffers.pieces(other), strict=True):
        requests.append(at.apart.Irecv(buffers.spec(theirs), partner, _TAG))
        requests.append(at.apart.Isend(buffers.spec(mine), partner, _TAG))
    MPI.Request.Waitall(requests)
