"""Reduction of sparse tensors, such as the gradients of embeddings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shanty.torch.hvd import calls
from shanty.torch.hvd.handles import synchronize
from shanty.torch.hvd.process_sets import ProcessSet, global_process_set
from shanty.torch.hvd.requests import Op


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Start to add up sparse tensors (layout `torch.sparse_coo`), which may fill other places on
    other ranks.

    op: Average or Sum. Returns a function: it waits and returns the result, a sparse tensor of
    the same shape. It is not coalesced, so one place may stand in it several times.
    Raises ValueError for another layout or op.
    """
    op = Op(op)
    if op not in (Op.AVERAGE, Op.SUM):
        raise ValueError(
            f"sparse_allreduce_async takes hvd.Average and hvd.Sum, not {op.name.title()}."
        )
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async needs a sparse COO tensor, not {tensor.layout}.")
    shape = tensor.shape
    places = tensor._indices().t().contiguous()
    parts = [
        calls.allgather([part], name and f"{name}.{which}", process_set, False)
        for part, which in ((places, "indices"), (tensor._values(), "values"))
    ]

    def finish() -> Tensor:
        indices, values = map(synchronize, parts)
        if op is Op.AVERAGE:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False)

    return finish
