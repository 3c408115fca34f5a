"""What TensorFlow alone has of allreduce: what is taken for a tensor, results, sparse averages."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from on_tensorflow import both
from references import close, same

import shanty.tensorflow as hvd


def check_what_is_taken() -> None:
    """Variables, arrays, numbers and lists, as wherever TensorFlow takes a tensor."""
    rank, size = hvd.rank(), hvd.size()
    variable = tf.Variable([float(rank), 1.0])
    total = [sum(range(size)), size]

    def call() -> list[Any]:
        return [
            hvd.allreduce(variable, op=hvd.Sum),
            hvd.allreduce(np.array([rank, 1], np.int64), op=hvd.Sum),
            hvd.allreduce([float(rank), 1.0], op=hvd.Sum),
            tf.stack([hvd.allreduce(rank, op=hvd.Sum), hvd.allreduce(1, op=hvd.Sum)]),
        ]

    for way, attempt in both(call):
        for found in attempt():
            close(found, np.array(total), way)
    same(variable, np.array([rank, 1], np.float32))


def check_results_are_their_own() -> None:
    """Nothing that comes later writes to a result, or to what was given."""
    given_once = tf.constant([1.0, 2.0])
    kept = [hvd.allreduce(given_once, op=hvd.Sum, name="own") for _ in range(20)]
    kept += [hvd.broadcast(given_once, 0, name="own") for _ in range(20)]
    for each in kept[:20]:
        close(each, np.array([1.0, 2.0]) * hvd.size())
    for each in [*kept[20:], given_once]:
        close(each, np.array([1.0, 2.0]))


def check_averages_of_sparse_integers() -> None:
    """Rows that stay apart cannot be rounded: 1 on each of two ranks would be 0."""
    for dtype in (tf.int32, tf.int64, tf.uint8):
        rows = tf.IndexedSlices(tf.ones([1, 2], dtype), tf.constant([hvd.rank() % 2]))
        for way, attempt in both(lambda rows=rows: hvd.allreduce(rows).values):
            close(attempt(), np.full((hvd.size(), 2), 1 / hvd.size()), (way, dtype), 1e-6)


def check_groups_of_nothing() -> None:
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_reducescatter([]) == []
