"""What TensorFlow alone has: variables, IndexedSlices, questions in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from checks import raised
from on_tensorflow import both
from references import close, given, reduced, same

import shanty.tensorflow as hvd
from shanty.tensorflow_ops.memory import tensor_of


def check_memory_of_any_alignment() -> None:
    """NumPy aligns small arrays to 16 bytes; TensorFlow needs 64, else it ends the process."""
    for dtype in (tf.int32, tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.uint8):
        for offset in (0, 8, 16, 32, 48):
            memory = np.zeros(512, np.uint8)
            start = -memory.ctypes.data % 64 + offset
            array = memory[start : start + 256].view(dtype.as_numpy_dtype)
            ones = tensor_of(array) + tf.cast(1, dtype)
            same(ones, np.ones(array.size, dtype.as_numpy_dtype))
            assert bool(tensor_of(array[0:1].reshape(())) >= tf.cast(0, dtype))
    for _ in range(20):
        assert 0 <= hvd.join() < hvd.size()


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
    assert hvd.grouped_allgather([]) == []


def check_broadcast_of_keras() -> None:
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4)])
    before = hvd.allgather_object(model.get_weights()[0].tolist())
    assert before[0] != before[-1]
    hvd.broadcast_variables(model.variables, root_rank=0)
    assert model.get_weights()[0].tolist() == before[0]


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
