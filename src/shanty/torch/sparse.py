"""Sums of sparse tensors: indices and values of all ranks are gathered, and added up on each.

DistributedDataParallel reduces the gradient of `nn.Embedding(sparse=True)` so. Importing this
module starts MPI.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shanty.collectives import operations
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Reduction


def check(tensor: Tensor, how: Reduction) -> None:
    """TypeError for a reduction other than a sum or mean: absent elements would count as zero."""
    if how.name not in ("SUM", "AVG") or tensor.dtype == torch.bool:
        raise TypeError(
            f"all_reduce: ReduceOp.{how.name} of a sparse tensor of {tensor.dtype} is not "
            "supported, only SUM and AVG of numbers. Call to_dense() first."
        )


def all_reduce(at: Channel, tensor: Tensor, how: Reduction) -> None:
    """The tensor, in coordinate format and on the CPU, becomes the sum or mean over all ranks."""
    with torch.inference_mode(False), torch.no_grad():  # what it gets is ordinary memory
        own = tensor.coalesce()
        counts = [count for (count,) in operations.exchange_counts(at, [own._nnz()])]
        places = _gathered(at, own.indices().T.contiguous(), counts).T
        values = _gathered(at, own.values().contiguous(), counts)
        if how.carrier is not None:
            values = values.to(getattr(torch, how.carrier))
        total = torch.sparse_coo_tensor(places, values, tensor.shape, check_invariants=False)
        total = total.coalesce()
        how.divide(total.values(), at.size)
        tensor.copy_(total.to(tensor.dtype))


def _gathered(at: Channel, rows: Tensor, counts: Sequence[int]) -> Tensor:
    """The rows of all ranks; counts: how many each has."""
    every = rows.new_empty((sum(counts), *rows.shape[1:]))
    operations.all_gather(at, every.split_with_sizes(list(counts)), rows)
    return every
