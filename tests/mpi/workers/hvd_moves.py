"""What PyTorch alone has of allgather, broadcast and alltoall: sparse tensors, handles, layouts."""

from __future__ import annotations

import time

import torch
from checks import raised
from references import close, given, parts, reduced, same

import shanty.torch as hvd


def check_forms_of_allgather() -> None:
    tensors = parts(lambda rank: rank + 2, 4)
    turned = [each.t().contiguous().t() for each in tensors]
    same(hvd.allgather(turned[hvd.rank()]), torch.cat(tensors))
    raised(ValueError, lambda: hvd.allgather(torch.ones(2, 2).to_sparse()), "sparse")


def check_forms_of_broadcast() -> None:
    root = hvd.size() - 1
    tensors = given((4, 3), seed=1)
    expected = tensors[root]
    own = tensors[hvd.rank()]
    turned = own.clone().t()
    hvd.broadcast_(turned, root)
    same(turned, expected.t())
    weight = torch.nn.Parameter(own.clone())
    assert hvd.broadcast_(weight, root) is weight
    same(weight.detach(), expected)
    raised(ValueError, lambda: hvd.broadcast(own, hvd.size()), f"rank {hvd.size()}")
    raised(ValueError, lambda: hvd.broadcast_(own, -1), "rank -1")
    raised(ValueError, lambda: hvd.broadcast(torch.ones(2, 2).to_sparse(), 0), "sparse")
    names = [f"many.{number}" for number in range(30)]
    if hvd.rank() % 2:
        names.reverse()
    copies = {name: own.clone() for name in names}
    handles = [hvd.broadcast_async_(each, root, name) for name, each in copies.items()]
    for handle in handles:
        same(hvd.synchronize(handle), expected)


def check_forms_of_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    found, counts = hvd.synchronize(hvd.alltoall_async(torch.arange(float(size))))
    same(found, torch.full((size,), float(rank)))
    same(counts, torch.ones(size, dtype=torch.int32))
    turned = given((3, 2 * size), seed=3)
    expected = torch.cat([each.t()[2 * rank : 2 * rank + 2] for each in turned])
    same(hvd.alltoall(turned[rank].t()), expected)
    fractions = torch.ones(size)
    raised(ValueError, lambda: hvd.alltoall(torch.ones(size), fractions), "integers")


def check_sparse() -> None:
    size, rank = hvd.size(), hvd.rank()
    dense = []
    for each in given((6, 3), seed=4):
        each[each[:, 0] < 0.5] = 0
        dense.append(each)
    for op in (hvd.Sum, hvd.Average):
        finish = hvd.sparse_allreduce_async(dense[rank].to_sparse(1), "sparse", op)
        found = finish()
        assert found.layout is torch.sparse_coo and found.shape == (6, 3)
        close(found.to_dense(), reduced(dense, op))
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (4,))
    found = hvd.sparse_allreduce_async(twice, "twice", hvd.Sum)().to_dense()
    close(found, torch.tensor([0.0, 3.0 * size, 0.0, 0.0]))
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0, 2), (5, 2))
    own = torch.sparse_coo_tensor([[2]], [[1.0, 2.0]], (5, 2)) if rank == 0 else empty
    found = hvd.sparse_allreduce_async(own, "nearly empty", hvd.Sum)()
    close(found.to_dense()[2], torch.tensor([1.0, 2.0]))
    assert hvd.sparse_allreduce_async(empty, None, hvd.Sum)().to_dense().count_nonzero() == 0
    raised(
        ValueError, lambda: hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum), "sparse"
    )
    raised(ValueError, lambda: hvd.sparse_allreduce_async(own, "max", hvd.Max), "Max")


def check_handles() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="handle", op=hvd.Sum)
    assert isinstance(handle, int) and handle > 0
    until = time.monotonic() + 20
    while not hvd.poll(handle):
        assert time.monotonic() < until
    close(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))
    assert hvd.synchronize(handle) is None
    raised(ValueError, lambda: hvd.poll(handle), str(handle))
    raised(ValueError, lambda: hvd.poll(10**9), str(10**9))
    first, second = (hvd.allreduce_async(torch.ones(1)) for _ in range(2))
    assert first != second
    hvd.synchronize(second)
    hvd.synchronize(first)


def check_barrier() -> None:
    for _ in range(5):
        came = time.monotonic()
        hvd.barrier()
        left = time.monotonic()
        every = hvd.allgather_object((came, left))
        assert max(came for came, _ in every) <= min(left for _, left in every)
