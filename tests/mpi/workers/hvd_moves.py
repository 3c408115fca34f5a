"""allgather, broadcast, alltoall, sparse tensors, handles, join, barrier. See hvd_ops."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from hvd_reference import INTEGERS, OTHERS, REALS, close, given, reduced, same

import shanty.torch as hvd

EVERY = [*REALS, *INTEGERS, *OTHERS, torch.float8_e5m2]


def refused(call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except ValueError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("it was not refused")


def parts(rows: Callable[[int], int], *rest: int, dtype: torch.dtype = torch.float32) -> list:
    """A tensor for each rank, of as many rows as that rank has."""
    return [given((rows(rank), *rest), dtype, seed=rank, ranks=1)[0] for rank in range(hvd.size())]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, also of a type that cannot be compared."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def check_allgather() -> None:
    for dtype in EVERY:
        for rows in (lambda _: 2, lambda rank: rank + 1, lambda rank: 3 * (rank % 2), lambda _: 0):
            for rest in ((), (3,), (2, 2), (0,)):
                tensors = [each.to(dtype) for each in parts(rows, *rest)]
                found = hvd.allgather(tensors[hvd.rank()])
                assert found.dtype == dtype
                assert found.shape == (sum(map(len, tensors)), *rest)
                same(bits(found), torch.cat([bits(each) for each in tensors]))


def check_forms_of_allgather() -> None:
    tensors = parts(lambda rank: rank + 2, 4)
    expected = torch.cat(tensors)
    same(hvd.synchronize(hvd.allgather_async(tensors[hvd.rank()], name="ag")), expected)
    turned = [each.t().contiguous().t() for each in tensors]
    same(hvd.allgather(turned[hvd.rank()]), expected)
    others = parts(lambda rank: 3 - rank % 2, dtype=torch.int64)
    pair = [tensors[hvd.rank()], others[hvd.rank()]]
    for found in (
        hvd.grouped_allgather(pair),
        hvd.synchronize(hvd.grouped_allgather_async(pair, name="ag")),
    ):
        assert isinstance(found, tuple)
        same(found[0], expected)
        same(found[1], torch.cat(others))
    refused(lambda: hvd.allgather(torch.tensor(1.0)), "dimension")
    refused(lambda: hvd.allgather(torch.ones(2, 2).to_sparse()), "sparse")


def check_broadcast() -> None:
    for root in range(hvd.size()):
        for dtype in EVERY:
            for shape in ((), (0,), (5,), (3, 4)):
                tensors = [each.to(dtype) for each in given(shape, seed=root)]
                own = tensors[hvd.rank()].clone()
                found = hvd.broadcast(own, root)
                same(bits(found), bits(tensors[root]))
                same(bits(own), bits(tensors[hvd.rank()]))


def check_forms_of_broadcast() -> None:
    root = hvd.size() - 1
    tensors = given((4, 3), seed=1)
    expected = tensors[root]
    own = tensors[hvd.rank()]
    same(hvd.synchronize(hvd.broadcast_async(own, root, name="b")), expected)
    inside = own.clone()
    assert hvd.broadcast_(inside, root) is inside
    same(inside, expected)
    inside = own.clone()
    assert hvd.synchronize(hvd.broadcast_async_(inside, root, name="b")) is inside
    same(inside, expected)
    turned = own.clone().t()
    hvd.broadcast_(turned, root)
    same(turned, expected.t())
    weight = torch.nn.Parameter(own.clone())
    assert hvd.broadcast_(weight, root) is weight
    same(weight.detach(), expected)
    refused(lambda: hvd.broadcast(own, hvd.size()), f"rank {hvd.size()}")
    refused(lambda: hvd.broadcast_(own, -1), "rank -1")
    refused(lambda: hvd.broadcast(torch.ones(2, 2).to_sparse(), 0), "sparse")
    names = [f"many.{number}" for number in range(30)]
    if hvd.rank() % 2:
        names.reverse()
    copies = {name: own.clone() for name in names}
    handles = [hvd.broadcast_async_(each, root, name) for name, each in copies.items()]
    for handle in handles:
        same(hvd.synchronize(handle), expected)


def check_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in EVERY:
        for rest in ((), (3,)):
            tensors = [each.to(dtype) for each in given((2 * size, *rest), seed=2)]
            expected = torch.cat([bits(each[2 * rank : 2 * rank + 2]) for each in tensors])
            found = hvd.alltoall(tensors[rank])
            assert (found.dtype, found.shape) == (dtype, (2 * size, *rest))
            same(bits(found), expected)


def check_splits() -> None:
    size, rank = hvd.size(), hvd.rank()
    # splits[s][r]: rows from s to r, some of them none
    splits = [[(s + 2 * r) % 3 for r in range(size)] for s in range(size)]
    tensors = [
        given((sum(splits[s]) + s % 2, 2), seed=s, ranks=1)[0] for s in range(size)
    ]  # those with an odd number have a row too many, which stays where it is
    sent = [torch.split(each[: sum(by)], by) for each, by in zip(tensors, splits, strict=True)]
    expected = torch.cat([each[rank] for each in sent])
    received = [by[rank] for by in splits]
    own = tensors[rank]
    for given_as, dtype in (
        (splits[rank], torch.int32),
        (tuple(splits[rank]), torch.int32),
        (torch.tensor(splits[rank], dtype=torch.int32), torch.int32),
        (torch.tensor(splits[rank]), torch.int64),
    ):
        found, counts = hvd.alltoall(own, given_as)
        same(found, expected)
        same(counts, torch.tensor(received, dtype=dtype))
        found, counts = hvd.synchronize(hvd.alltoall_async(own, given_as, name="splits"))
        same(found, expected)
        same(counts, torch.tensor(received, dtype=dtype))
    even = torch.arange(float(size))
    found, counts = hvd.synchronize(hvd.alltoall_async(even))
    same(counts, torch.ones(size, dtype=torch.int32))
    nothing, counts = hvd.alltoall(torch.ones(0, 3), [0] * size)
    assert nothing.shape == (0, 3) and counts.tolist() == [0] * size
    everything = [5 if r == 0 else 0 for r in range(size)]
    found, _ = hvd.alltoall(torch.full((5, 2), float(rank)), everything)
    assert len(found) == (5 * size if rank == 0 else 0)
    turned = given((3, 2 * size), seed=3)
    expected = torch.cat([each.t()[2 * rank : 2 * rank + 2] for each in turned])
    same(hvd.alltoall(turned[rank].t()), expected)
    refused(lambda: hvd.alltoall(torch.ones(size + 1)), "evenly")
    refused(lambda: hvd.alltoall(torch.ones(size), [2] * size), f"{2 * size} rows")
    refused(lambda: hvd.alltoall(torch.ones(size), [1]), "1 numbers")
    refused(lambda: hvd.alltoall(torch.ones(size), [-1] * size), "negative")
    refused(lambda: hvd.alltoall(torch.ones(size), torch.ones(size)), "integers")
    refused(lambda: hvd.alltoall(torch.tensor(1.0)), "dimension")


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
    refused(lambda: hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum), "sparse")
    refused(lambda: hvd.sparse_allreduce_async(own, "max", hvd.Max), "Max")


def check_handles() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="handle", op=hvd.Sum)
    assert isinstance(handle, int) and handle > 0
    until = time.monotonic() + 20
    while not hvd.poll(handle):
        assert time.monotonic() < until
    close(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))
    assert hvd.synchronize(handle) is None
    refused(lambda: hvd.poll(handle), str(handle))
    refused(lambda: hvd.poll(10**9), str(10**9))
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


def check_join() -> None:
    """With SHANTY_JOIN_ALL: for more than allreduces."""
    hvd.shutdown()
    os.environ["SHANTY_JOIN_ALL"] = "1"
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for turn in range(3):
        batches = [(each * 2 + turn) % 5 + 1 for each in range(size)]
        for batch in range(batches[rank]):
            left = [other for other in range(size) if batches[other] > batch]
            tensors = given((3,), seed=batch)
            found = hvd.allreduce(tensors[rank], op=hvd.Average, name=f"batch.{batch}")
            close(found, torch.stack([tensors[each].double() for each in left]).sum(0) / size)
            rows = hvd.allgather(torch.full((2, 1), rank), name=f"rows.{batch}")
            assert rows.flatten().tolist() == [each for each in left for _ in range(2)]
        last = hvd.join()
        assert batches[last] == max(batches), (batches, last)
        assert len(set(hvd.allgather_object(last))) == 1
    assert 0 <= hvd.join() < size


CHECKS = [
    check_allgather,
    check_forms_of_allgather,
    check_broadcast,
    check_forms_of_broadcast,
    check_alltoall,
    check_splits,
    check_sparse,
    check_handles,
    check_barrier,
    check_join,
]
