"""Gradients of every operation: what Horovod 0.28.1 gives them, in float64. See tf_ops.

Each rank's loss is the sum of its result times weights of its own, so the gradients that come
back are those weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_harness import both
from tf_reference import Array, close, given, reduced, rows_of

import shanty.tensorflow as hvd

v1 = tf.compat.v1


def weights(shape: tuple[int, ...], seed: int = 50) -> list[Array]:
    return given(shape, tf.float64, seed)


def gradients(call: Callable[..., Any], w: Array, *xs: Array) -> list[tuple[str, list[Any]]]:
    """The gradients of sum(call(*xs) * w), eagerly, from a graph, and alone in a session, which
    leaves out what they do not need and has one thread for all that waits.
    """

    def compute(*tensors: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = tf.reduce_sum(call(*tensors) * w)
        found: list[Any] = tape.gradient(loss, list(tensors))
        return found

    found = [(way, attempt(*map(tf.constant, xs))) for way, attempt in both(compute)]
    threads = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default(), v1.Session(config=threads) as session:
        fetched = session.run(compute(*map(tf.constant, xs)))
    return [*found, ("session", fetched)]


def check_gradient_of_allreduce() -> None:
    """The same reduction of the gradients, with the same factors."""
    how = {"prescale_factor": 0.5, "postscale_factor": 4.0, "name": "grad"}
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        for shape in ((), (2, 3)):
            x, w = given(shape, tf.float64), weights(shape)
            call = lambda one, op=op: hvd.allreduce(one, op=op, **how)  # noqa: E731
            for way, (found,) in gradients(call, w[hvd.rank()], x[hvd.rank()]):
                close(found, reduced(w, op, 0.5, 4.0), (way, op.name))


def check_gradient_of_grouped_allreduce() -> None:
    lots = [given((n + 1,), tf.float64, seed=n) for n in range(3)]
    w = weights((1,))
    call = lambda *xs: tf.reduce_sum(  # noqa: E731
        [(n + 1) * tf.reduce_sum(each) for n, each in enumerate(hvd.grouped_allreduce(list(xs)))]
    )
    for way, found in gradients(call, w[hvd.rank()], *(each[hvd.rank()] for each in lots)):
        for n, each in enumerate(found):
            close(each, np.full(n + 1, (n + 1) * reduced(w, hvd.Average)), way)


def check_gradient_of_compression() -> None:
    x, w = given((5,)), given((5,), seed=50)
    call = lambda one: hvd.allreduce(  # noqa: E731
        one, compression=hvd.Compression.fp16, op=hvd.Sum
    )
    for way, (found,) in gradients(call, w[hvd.rank()], x[hvd.rank()]):
        assert found.dtype == tf.float32
        close(found, reduced(w, hvd.Sum), way, 2e-3)


def check_second_gradient_of_allreduce() -> None:
    """Of f = sum(w (sum over ranks of x)^3): d/dx = S(3 w y^2), and once more."""
    x, w = given((4,), tf.float64), weights((4,))
    y = reduced(x, hvd.Sum)

    def compute(one: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as outer:
            outer.watch(one)
            with tf.GradientTape() as inner:
                inner.watch(one)
                loss = tf.reduce_sum(hvd.allreduce(one, op=hvd.Sum) ** 3 * w[hvd.rank()])
            first = inner.gradient(loss, one)
        return first, outer.gradient(first, one)

    total = reduced(w, hvd.Sum)
    for way, attempt in both(compute):
        first, second = attempt(tf.constant(x[hvd.rank()]))
        close(first, 3 * total * y**2, way)
        # each rank differentiates the sum of its own first gradients: all of them together
        close(second, hvd.size() * 6 * total * y, way)


def check_gradient_of_allgather() -> None:
    """This rank's rows of the average of the gradients."""
    size, rank = hvd.size(), hvd.rank()
    for rows in (
        [2] * size,
        [each + 1 for each in range(size)],
        [each % 2 for each in range(size)],
    ):
        w = weights((sum(rows), 3))
        for way, (found,) in gradients(hvd.allgather, w[rank], np.ones((rows[rank], 3))):
            start = sum(rows[:rank])
            close(found, reduced(w, hvd.Average)[start : start + rows[rank]], (way, rows))
    rows = [each + 1 for each in range(size)]
    w = weights((sum(rows),))

    def call(one: Any, two: Any) -> Any:
        first, second = hvd.grouped_allgather([one, two])
        return first + 2 * second

    for way, found in gradients(call, w[rank], np.ones(rows[rank]), np.ones(rows[rank])):
        start = sum(rows[:rank])
        expected = reduced(w, hvd.Average)[start : start + rows[rank]]
        close(found[0], expected, way)
        close(found[1], 2 * expected, way)


def check_gradient_of_broadcast() -> None:
    """The average of the gradients on the root, and nothing elsewhere."""
    for root in (0, hvd.size() - 1):
        w = weights((3,))
        call = lambda one, root=root: hvd.broadcast(one, root)  # noqa: E731
        for way, (found,) in gradients(call, w[hvd.rank()], np.ones(3)):
            close(found, reduced(w, hvd.Average) * (hvd.rank() == root), way)


def check_gradient_of_alltoall() -> None:
    """Everything goes back; rows that were not sent have none."""
    size, rank = hvd.size(), hvd.rank()
    w = weights((2 * size, 2))
    for way, (found,) in gradients(hvd.alltoall, w[rank], np.ones((2 * size, 2))):
        close(found, np.concatenate([each[2 * rank : 2 * rank + 2] for each in w]), way)
    splits = [1 + (rank + r) % 2 for r in range(size)]
    received = [1 + (s + rank) % 2 for s in range(size)]
    call = lambda one: hvd.alltoall(one, splits)[0]  # noqa: E731
    own = np.full((sum(received), 1), rank + 1.0)
    for way, (found,) in gradients(call, own, np.ones((sum(splits) + 1, 1))):
        expected = np.repeat(np.arange(size) + 1.0, splits)
        close(found, np.append(expected, 0.0)[:, None], way)


def check_gradient_of_reducescatter() -> None:
    """All rows, gathered; times the number of ranks for a Sum."""
    size, rank = hvd.size(), hvd.rank()
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        w = weights((2 * size + 1, 2))[0]
        call = lambda one, op=op: hvd.reducescatter(  # noqa: E731
            one, op=op, prescale_factor=0.5, postscale_factor=3.0
        )
        for way, (found,) in gradients(call, rows_of(w, rank, size), np.ones((2 * size + 1, 2))):
            close(found, 1.5 * factor * w, (way, op.name))
        grouped = lambda one, op=op: hvd.grouped_reducescatter([one], op=op)[0]  # noqa: E731
        for way, (found,) in gradients(grouped, rows_of(w, rank, size), np.ones((2 * size + 1, 2))):
            close(found, factor * w, (way, op.name))


CHECKS = [
    check_gradient_of_allreduce,
    check_gradient_of_grouped_allreduce,
    check_gradient_of_compression,
    check_second_gradient_of_allreduce,
    check_gradient_of_allgather,
    check_gradient_of_broadcast,
    check_gradient_of_alltoall,
    check_gradient_of_reducescatter,
]
