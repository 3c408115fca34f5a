"""Gradients of every operation: what Horovod 0.28.1 gives them, in float64. See framework.py.

Each rank's loss is the sum of its result times weights of its own, so the gradients that come
back are those weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from framework import fw, hvd
from references import close, given, name_of, reduced, rows_of


def weights(shape: tuple[int, ...], seed: int = 50) -> list[Any]:
    return given(shape, "float64", seed)


def check_gradient_of_allreduce() -> None:
    """The same reduction of the gradients, with the same factors."""
    how = {"prescale_factor": 0.5, "postscale_factor": 4.0, "name": "grad"}
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        for shape in ((), (4,), (2, 3)):
            x, w = given(shape, "float64"), weights(shape)
            call = lambda one, op=op: hvd.allreduce(one, op=op, **how)  # noqa: E731
            for way, (found,) in fw.gradients(call, w[hvd.rank()], x[hvd.rank()]):
                close(found, reduced(w, op, 0.5, 4.0), (way, op.name))


def check_gradient_of_grouped_allreduce() -> None:
    lots = [given((n + 1,), "float64", seed=n) for n in range(3)]
    w = weights((1,))

    def call(*xs: Any) -> Any:
        found = hvd.grouped_allreduce(list(xs), op=hvd.Average, postscale_factor=2.0)
        return sum(n * fw.sum(each) for n, each in enumerate(found))  # of the first: zero

    for way, found in fw.gradients(call, w[hvd.rank()], *(each[hvd.rank()] for each in lots)):
        for n, each in enumerate(found):
            close(each, np.full(n + 1, n * reduced(w, hvd.Average, 1.0, 2.0)), way)


def check_gradient_of_compression() -> None:
    x, w = given((5,)), given((5,), seed=50)
    call = lambda one: hvd.allreduce(  # noqa: E731
        one, compression=hvd.Compression.fp16, op=hvd.Sum
    )
    for way, (found,) in fw.gradients(call, w[hvd.rank()], x[hvd.rank()]):
        assert name_of(found.dtype) == "float32"
        close(found, reduced(w, hvd.Sum), way, 2e-3)


def check_gradient_of_allgather() -> None:
    """This rank's rows of the average of the gradients."""
    size, rank = hvd.size(), hvd.rank()

    def grouped(one: Any, two: Any) -> Any:
        first, second = hvd.grouped_allgather([one, two])
        return first + 2 * second

    for rows in (
        [2] * size,
        [each + 1 for each in range(size)],
        [each % 2 for each in range(size)],
    ):
        own, w = np.ones((rows[rank], 3)), weights((sum(rows), 3))
        start = sum(rows[:rank])
        expected = reduced(w, hvd.Average)[start : start + rows[rank]]
        for way, (found,) in fw.gradients(hvd.allgather, w[rank], own):
            close(found, expected, (way, rows))
        for way, (first, second) in fw.gradients(grouped, w[rank], own, own):
            close(first, expected, (way, rows))
            close(second, 2 * expected, (way, rows))


def check_gradient_of_broadcast() -> None:
    """The average of the gradients at the root, zeros elsewhere."""
    for root in range(hvd.size()):
        w = weights((3,))
        call = lambda one, root=root: hvd.broadcast(one, root, name="grad")  # noqa: E731
        for way, (found,) in fw.gradients(call, w[hvd.rank()], np.ones(3)):
            close(found, reduced(w, hvd.Average) * (hvd.rank() == root), way)


def check_gradient_of_alltoall() -> None:
    """Every gradient goes back to where its row came from; rows that stayed get zeros."""
    size, rank = hvd.size(), hvd.rank()
    w = weights((2 * size, 2))
    rows = [fw.wide(each)[2 * rank : 2 * rank + 2] for each in w]
    for way, (found,) in fw.gradients(hvd.alltoall, w[rank], np.ones((2 * size, 2))):
        close(found, np.concatenate(rows), way)
    splits = [[(2 * s + r) % 3 for r in range(size)] for s in range(size)]
    received = sum(each[rank] for each in splits)
    call = lambda one: hvd.alltoall(one, splits[rank], name="grad")[0]  # noqa: E731
    for spare in (0, 2):
        x = np.ones((sum(splits[rank]) + spare, 2))
        for way, (found,) in fw.gradients(call, np.full((received, 2), rank + 1.0), x):
            expected = np.append(np.repeat(np.arange(size) + 1.0, splits[rank]), [0.0] * spare)
            close(found, np.broadcast_to(expected[:, None], x.shape), (way, spare))


def check_gradient_of_reducescatter() -> None:
    """The gradients of all ranks end to end; for a Sum times the number of ranks."""
    size, rank = hvd.size(), hvd.rank()
    how = {"prescale_factor": 0.5, "postscale_factor": 3.0, "name": "grad"}
    w = fw.wide(weights((2 * size + 1, 2))[0])
    own = np.ones((2 * size + 1, 2))
    for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
        call = lambda one, op=op: hvd.reducescatter(one, op=op, **how)  # noqa: E731
        for way, (found,) in fw.gradients(call, rows_of(w, rank, size), own):
            close(found, 1.5 * factor * w, (way, op.name))

        def grouped(one: Any, two: Any, op: Any = op) -> Any:
            first, second = hvd.grouped_reducescatter([one, two], op=op)
            return first + 3 * second

        for way, (first, second) in fw.gradients(grouped, rows_of(w, rank, size), own, own):
            close(first, factor * w, (way, op.name))
            close(second, 3 * factor * w, (way, op.name))
