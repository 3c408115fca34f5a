"""allgather, broadcast, alltoall, join and objects, whatever the framework. See framework.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from checks import raised
from framework import all_equal, forms_of, fw, hvd, ones
from references import close, given, name_of, parts, reduced, same

ROWS: list[Callable[[int], int]] = [
    lambda _: 2,
    lambda rank: rank + 1,
    lambda rank: 3 * (rank % 2),
    lambda _: 0,
]


def joined(tensors: list[Any], dtype: Any) -> Any:
    """These arrays as one, row by row."""
    rows = np.concatenate([fw.wide(each) for each in tensors])
    return fw.array(rows, dtype)


def check_allgather() -> None:
    cases = [
        (dtype, rows, rest)
        for dtype in fw.EVERY
        for rows in range(len(ROWS))
        for rest in ((), (3,), (2, 2), (0,))
    ]
    lots = {case: parts(ROWS[case[1]], *case[2], dtype=case[0]) for case in cases}
    for form, some in forms_of("allgather", cases, 7):
        for way, case, found in fw.ways(some, lambda *of, f=form: f(lots[of][hvd.rank()])):
            assert name_of(found.dtype) == case[0]
            assert tuple(found.shape) == (sum(map(len, lots[case])), *case[2])
            same(found, joined(lots[case], case[0]), (way, case))


def check_grouped_allgather() -> None:
    tensors = parts(lambda rank: rank + 2, 4)
    others = parts(lambda rank: 3 - rank % 2, dtype="int64")
    pair = [fw.tensor(each[hvd.rank()]) for each in (tensors, others)]
    for form, kind in fw.grouped("grouped_allgather"):
        for way, attempt in fw.both(lambda f=form: f(pair)):
            found = attempt()
            assert isinstance(found, kind)
            same(found[0], joined(tensors, "float32"), way)
            same(found[1], joined(others, "int64"), way)


def check_broadcast() -> None:
    cases = [
        (dtype, shape, root)
        for dtype in fw.EVERY
        for shape in ((), (0,), (5,), (3, 4))
        for root in range(hvd.size())
    ]
    lots = {case: given(case[1], case[0], seed=case[2]) for case in cases}
    own = {case: fw.tensor(each[hvd.rank()]) for case, each in lots.items()}
    for form, some in forms_of("broadcast", cases, 7):
        for way, case, found in fw.ways(some, lambda *of, f=form: f(own[of], of[2])):
            same(found, lots[case][case[2]], (way, case))
    for case in cases:
        same(own[case], lots[case][hvd.rank()])


def check_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    cases = [(dtype, rest) for dtype in fw.EVERY for rest in ((), (3,))]
    lots = {case: given((2 * size, *case[1]), case[0], seed=2) for case in cases}
    for way, case, found in fw.ways(cases, lambda *of: hvd.alltoall(lots[of][rank]), 3):
        rows = [each[2 * rank : 2 * rank + 2] for each in lots[case]]
        same(found, joined(rows, case[0]), (way, case))


def check_splits() -> None:
    size, rank = hvd.size(), hvd.rank()
    # splits[s][r]: rows from s to r, some of them none
    splits = [[(s + 2 * r) % 3 for r in range(size)] for s in range(size)]
    # ranks with an odd number have a row too many, which stays where it is
    tensors = [given((sum(splits[s]) + s % 2, 2), seed=s, ranks=1)[0] for s in range(size)]
    ends = [sum(by[: rank + 1]) for by in splits]
    rows = [each[end - by[rank] : end] for each, by, end in zip(tensors, splits, ends, strict=True)]
    own, received = tensors[rank], [by[rank] for by in splits]
    for form in fw.forms("alltoall"):
        for given_as, dtype in fw.splits_as(splits[rank]):
            call = lambda f=form, by=given_as: f(own, by, name="splits")  # noqa: E731
            for way, attempt in fw.both(call):
                found, counts = attempt()
                same(found, joined(rows, "float32"), way)
                same(counts, fw.array(received, dtype), way)
    nothing, counts = hvd.alltoall(ones(0, 3), [0] * size)
    assert tuple(nothing.shape) == (0, 3) and fw.wide(counts).tolist() == [0] * size
    everything = [5 if r == 0 else 0 for r in range(size)]
    found, _ = hvd.alltoall(fw.tensor(np.full((5, 2), float(rank))), everything)
    assert len(found) == (5 * size if rank == 0 else 0)


def check_join() -> None:
    """For as many batches as each rank has; with SHANTY_JOIN_ALL for more than allreduces."""
    hvd.shutdown()
    os.environ["SHANTY_JOIN_ALL"] = "1"
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    reduces = fw.both(lambda x: hvd.allreduce(x, op=hvd.Average, name="batch"))
    for turn, ((_, reduce), (_, join)) in enumerate(zip(reduces, fw.both(hvd.join), strict=True)):
        for again in range(3):
            batches = [(each * 2 + turn + again) % 5 + 1 for each in range(size)]
            for batch in range(batches[rank]):
                left = [other for other in range(size) if batches[other] > batch]
                tensors = given((3,), seed=batch)
                total = reduced([tensors[each] for each in left], hvd.Sum)
                close(reduce(fw.tensor(tensors[rank])), total / size)
                rows = hvd.allgather(fw.tensor(np.full((2, 1), rank)), name=f"rows.{batch}")
                assert fw.wide(rows)[:, 0].tolist() == [each for each in left for _ in range(2)]
            last = int(join())
            assert batches[last] == max(batches), (batches, last)
            assert len(set(hvd.allgather_object(last))) == 1
    assert 0 <= int(hvd.join()) < size
    hvd.shutdown()
    del os.environ["SHANTY_JOIN_ALL"]
    hvd.init()
    assert all_equal(hvd.allreduce(ones(), op=hvd.Sum), size)


def check_objects() -> None:
    size, rank = hvd.size(), hvd.rank()
    thing = {"rank": rank, "array": np.arange(rank + 1), "text": "ü" * 1000 * rank}
    every = hvd.allgather_object(thing)
    assert [each["rank"] for each in every] == list(range(size))
    assert [len(each["array"]) for each in every] == list(range(1, size + 1))
    assert hvd.allgather_object(None, name="none") == [None] * size
    for root in range(size):
        found = hvd.broadcast_object(thing if rank == root else None, root, name="thing")
        assert found["rank"] == root and len(found["text"]) == 1000 * root
        assert (found is thing) == (rank == root)
    assert hvd.broadcast_object({"a": [1, 2]}) == {"a": [1, 2]}
    large = hvd.broadcast_object(bytes(3_000_000) if rank == 0 else None, 0)
    assert large == bytes(3_000_000)
    if rank == 0:
        secret = (each for each in "no pickle takes this")
        raised(TypeError, lambda: hvd.broadcast_object(secret, 0))
    else:
        raised(hvd.HorovodInternalError, lambda: hvd.broadcast_object(None, 0), "rank 0")
    assert hvd.allgather_object(rank) == list(range(size))
    if hasattr(hvd, "broadcast_object_fn"):  # of TensorFlow
        assert hvd.broadcast_object_fn(size - 1)(rank) == size - 1
