"""allgather, broadcast, alltoall, IndexedSlices, join, objects. See tf_ops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_harness import both, raised, ways
from tf_reference import EVERY, Array, close, given, reduced, same

import shanty.tensorflow as hvd

ROWS: list[Callable[[int], int]] = [
    lambda _: 2,
    lambda rank: rank + 1,
    lambda rank: 3 * (rank % 2),
    lambda _: 0,
]


def parts(rows: Callable[[int], int], *rest: int, dtype: Any = tf.float32) -> list[Array]:
    """An array for each rank, of as many rows as that rank has."""
    return [given((rows(rank), *rest), dtype, seed=rank, ranks=1)[0] for rank in range(hvd.size())]


def check_allgather() -> None:
    cases = [
        (dtype, rows, rest)
        for dtype in EVERY
        for rows in range(len(ROWS))
        for rest in ((), (3,), (2, 2), (0,))
    ]
    lots = {case: parts(ROWS[case[1]], *case[2], dtype=case[0]) for case in cases}
    for way, case, found in ways(cases, lambda *of: hvd.allgather(lots[of][hvd.rank()])):
        same(found, np.concatenate(lots[case]), (way, case))


def check_grouped_allgather() -> None:
    tensors = parts(lambda rank: rank + 2, 4)
    others = parts(lambda rank: 3 - rank % 2, dtype=tf.int64)
    pair = [tensors[hvd.rank()], others[hvd.rank()]]
    for way, attempt in both(lambda: hvd.grouped_allgather(pair)):
        found = attempt()
        assert isinstance(found, list)
        same(found[0], np.concatenate(tensors), way)
        same(found[1], np.concatenate(others), way)
    assert hvd.grouped_allgather([]) == []
    raised(ValueError, lambda: hvd.allgather(tf.constant(1.0)))


def check_broadcast() -> None:
    cases = [
        (dtype, shape, root)
        for dtype in EVERY
        for shape in ((), (0,), (5,), (3, 4))
        for root in range(hvd.size())
    ]
    lots = {case: given(case[1], case[0], seed=case[2]) for case in cases}
    own = {case: tf.constant(each[hvd.rank()]) for case, each in lots.items()}
    for way, case, found in ways(cases, lambda *of: hvd.broadcast(own[of], of[2])):
        same(found, lots[case][case[2]], (way, case))
    for case in cases:
        same(own[case], lots[case][hvd.rank()])


def check_broadcast_of_variables() -> None:
    root = hvd.size() - 1
    kinds = [tf.float32, tf.float16, tf.int64, tf.bool, tf.bfloat16]
    lots = [given((n, 2), dtype, seed=n) for n, dtype in enumerate(kinds)]

    def fresh() -> list[Any]:
        return [tf.Variable(each[hvd.rank()]) for each in lots]

    made = fresh(), fresh()
    for (way, attempt), variables in zip(both(hvd.broadcast_), made, strict=True):
        values = attempt(variables, root)
        for variable, value, tensors in zip(variables, values, lots, strict=True):
            same(variable, tensors[root], way)
            same(value, tensors[root], way)
    variables = fresh()
    assert hvd.broadcast_variables(variables, root_rank=0) is None
    for variable, tensors in zip(variables, lots, strict=True):
        same(variable, tensors[0])
    variables = fresh()

    @tf.function
    def in_a_graph() -> None:
        hvd.broadcast_variables(variables, 0, inplace=True)

    in_a_graph()
    for variable, tensors in zip(variables, lots, strict=True):
        same(variable, tensors[0])
    assert hvd.broadcast_variables([], 0) is None


def check_broadcast_of_keras() -> None:
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4)])
    before = hvd.allgather_object(model.get_weights()[0].tolist())
    assert before[0] != before[-1]
    hvd.broadcast_variables(model.variables, root_rank=0)
    assert model.get_weights()[0].tolist() == before[0]


def check_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    cases = [(dtype, rest) for dtype in EVERY for rest in ((), (3,))]
    lots = {case: given((2 * size, *case[1]), case[0], seed=2) for case in cases}
    for way, case, found in ways(cases, lambda *of: hvd.alltoall(lots[of][rank]), 3):
        same(found, np.concatenate([each[2 * rank : 2 * rank + 2] for each in lots[case]]), way)


def check_splits() -> None:
    size, rank = hvd.size(), hvd.rank()
    # splits[s][r]: rows from s to r, some of them none
    splits = [[(s + 2 * r) % 3 for r in range(size)] for s in range(size)]
    # those with an odd number have a row too many, which stays where it is
    tensors = [given((sum(splits[s]) + s % 2, 2), seed=s, ranks=1)[0] for s in range(size)]
    ends = [np.cumsum(by) for by in splits]
    expected = np.concatenate(
        [
            each[end[rank] - by[rank] : end[rank]]
            for each, by, end in zip(tensors, splits, ends, strict=True)
        ]
    )
    received = np.array([by[rank] for by in splits], np.int32)
    own = tensors[rank]
    for splits_as in (
        splits[rank],
        tuple(splits[rank]),
        tf.constant(splits[rank], tf.int32),
        tf.constant(splits[rank], tf.int64),
        np.array(splits[rank]),
    ):
        for way, attempt in both(lambda by=splits_as: hvd.alltoall(own, by, name="splits")):
            found, counts = attempt()
            same(found, expected, way)
            same(counts, received, way)
    nothing, counts = hvd.alltoall(tf.ones((0, 3)), [0] * size)
    assert nothing.shape == (0, 3) and counts.numpy().tolist() == [0] * size
    everything = [5 if r == 0 else 0 for r in range(size)]
    found, _ = hvd.alltoall(tf.fill((5, 2), float(rank)), everything)
    assert len(found) == (5 * size if rank == 0 else 0)


def check_indexed_slices() -> None:
    """Rows of all ranks, duplicates and all; in a group with dense tensors too."""
    size, rank = hvd.size(), hvd.rank()
    tensors = [given((each + 1, 2), seed=each, ranks=1)[0] for each in range(size)]
    rows = [[(each + n) % 3 for n in range(each + 1)] for each in range(size)]
    whole = np.zeros((3, 2))
    for values, indices in zip(tensors, rows, strict=True):
        np.add.at(whole, indices, values.astype(np.float64))

    def own() -> Any:
        indices = tf.constant(rows[rank], tf.int64)
        return tf.IndexedSlices(tf.constant(tensors[rank]), indices, tf.constant([3, 2], tf.int64))

    dense = given((4,), seed=3)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        for way, attempt in both(lambda op=op: hvd.allreduce(own(), op=op)):
            found = attempt()
            assert isinstance(found, tf.IndexedSlices)
            same(found.indices, np.concatenate(rows).astype(np.int64), way)
            close(tf.convert_to_tensor(found), whole / divisor, way)
        group = lambda op=op: hvd.grouped_allreduce(  # noqa: E731
            [dense[rank], own(), dense[rank], own()], op=op, name="mixed"
        )
        for way, attempt in both(group):
            first, second, third, fourth = attempt()
            for each in (first, third):
                close(each, reduced(dense, op), way)
            for each in (second, fourth):
                close(tf.convert_to_tensor(each), whole / divisor, way)
    raised(NotImplementedError, lambda: hvd.allreduce(own(), op=hvd.Max))
    raised(NotImplementedError, lambda: hvd.allreduce(own(), prescale_factor=2.0))


def check_questions_in_graphs() -> None:
    alone = hvd.add_process_set([0])
    number = alone.process_set_id
    size, rank = hvd.size(), hvd.rank()
    asked = lambda: [  # noqa: E731
        *(hvd.size_op(), hvd.size_op(number), hvd.rank_op(), hvd.local_rank_op()),
        *(hvd.local_size_op(), hvd.process_set_included_op(), hvd.process_set_included_op(number)),
        hvd.process_set_included_op(99),
    ]
    expected = [size, 1, rank, hvd.local_rank(), hvd.local_size(), 1, int(rank == 0), -3]
    for way, attempt in both(asked):
        assert [int(each) for each in attempt()] == expected, way
    assert hvd.remove_process_set(alone)


def check_objects() -> None:
    rank = hvd.rank()
    for each in ({"rank": rank, "array": np.arange(3)}, None, "x" * 100_000, [rank] * rank):
        every = hvd.allgather_object(each)
        assert len(every) == hvd.size() and str(every[rank]) == str(each)
        root = hvd.size() - 1
        assert str(hvd.broadcast_object(each, root)) == str(every[root])
        assert str(hvd.broadcast_object_fn(root)(each)) == str(every[root])
    lock = threading.Lock()  # which nobody can pickle
    error = raised((TypeError, hvd.HorovodInternalError), lambda: hvd.broadcast_object(lock))
    assert "pickle" in error, error


def check_join() -> None:
    """Eagerly and from a graph, for as many batches as each rank has."""
    size, rank = hvd.size(), hvd.rank()
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Average, name="batch"))
    last_of = tf.function(hvd.join)
    for turn, (reduce, join) in enumerate(((hvd.allreduce, hvd.join), (step, last_of))):
        batches = [(each * 2 + turn) % 5 + 1 for each in range(size)]
        for batch in range(batches[rank]):
            left = [other for other in range(size) if batches[other] > batch]
            tensors = given((3,), seed=batch)
            found = reduce(tf.constant(tensors[rank]))
            close(found, np.sum([tensors[each].astype(float) for each in left], 0) / size)
        last = int(join())
        assert batches[last] == max(batches), (batches, last)
        assert len(set(hvd.allgather_object(last))) == 1


CHECKS = [
    check_allgather,
    check_grouped_allgather,
    check_broadcast,
    check_broadcast_of_variables,
    check_broadcast_of_keras,
    check_alltoall,
    check_splits,
    check_indexed_slices,
    check_questions_in_graphs,
    check_objects,
    check_join,
]
