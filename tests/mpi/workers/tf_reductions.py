"""allreduce and reducescatter in all their forms, against float64. See tf_ops."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
from tf_harness import both, raised, ways
from tf_reference import (
    ERRORS,
    EVERY,
    INTEGERS,
    REALS,
    adasum,
    close,
    given,
    reduced,
    rows_of,
    same,
    wide,
)  # fmt: skip

import shanty.tensorflow as hvd

OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
SHAPES = [(), (0,), (5,), (2, 3)]
UNDIVIDED = (tf.bool, tf.uint16, tf.uint32, tf.uint64)


def has(dtype: Any, op: int) -> bool:
    if dtype in UNDIVIDED and op == hvd.Average:
        return False
    return not (dtype.is_complex and op in (hvd.Min, hvd.Max))


def check_allreduce_of_every_type() -> None:
    """In one graph all of them are under way at once."""
    cases = [
        (dtype, op, shape) for dtype in EVERY for op in OPS if has(dtype, op) for shape in SHAPES
    ]
    lots = {case: given(case[2], case[0]) for case in cases}
    own = {case: tf.constant(each[hvd.rank()]) for case, each in lots.items()}
    for way, case, found in ways(cases, lambda *of: hvd.allreduce(own[of], op=of[1])):
        assert found.dtype == case[0], (way, case)
        close(found, reduced(lots[case], case[1]), (way, case))
    for case, tensors in lots.items():
        same(own[case], tensors[hvd.rank()])


def check_what_cannot_be_reduced() -> None:
    for tensor, op in [
        (tf.constant([True]), hvd.Average),
        (tf.constant([1j]), hvd.Max),
        (tf.constant([1]), hvd.Adasum),
        (tf.constant(["text"]), hvd.Sum),
    ]:
        raised(ValueError, lambda tensor=tensor, op=op: hvd.allreduce(tensor, op=op))
    raised(ValueError, lambda: hvd.allreduce(tf.ones(2), op=17))


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


def check_factors() -> None:
    cases = [
        (dtype, op, before, after)
        for dtype in (*REALS, tf.int32, tf.int64, tf.complex64)
        for op in (OPS[:2] if dtype.is_complex else OPS)
        for before, after in ((0.5, 1.0), (1.0, 3.0), (2.5, 0.5))
    ]
    lots = {case: given((7,), case[0], seed=3) for case in cases}

    def call(dtype: Any, op: Any, before: float, after: float) -> Any:
        own = tf.constant(lots[dtype, op, before, after][hvd.rank()])
        return hvd.allreduce(own, op=op, prescale_factor=before, postscale_factor=after)

    for way, case, found in ways(cases, call):
        close(found, reduced(lots[case], *case[1:]), (way, case))


def check_factors_of_half_precision() -> None:
    """They need not be numbers of the type, nor what comes in between: it is rounded once."""
    cases = [
        (dtype, op, *factors)
        for dtype in (tf.float16, tf.bfloat16)
        for op in OPS
        for factors in (
            ((7.0, 50.0), 0.7, 1.0),
            ((7.0, 50.0), 1.0, 1 / 3),
            ((1e-3, 6e-3), 1e5, 1.0),
            ((60000.0, 30000.0), 1.0, 1e-8),
            ((30000.0, 20000.0), 1e-8, 1e8),
        )
    ]

    def call(dtype: Any, op: Any, values: Any, before: float, after: float) -> Any:
        each = tf.constant(values * 2, dtype)
        how = {"op": op, "prescale_factor": before, "postscale_factor": after}
        (group,) = hvd.grouped_allreduce([each], **how)
        part = hvd.reducescatter(each, **how) if op in OPS[:2] else each
        return tf.stack([hvd.allreduce(each, **how), group]), part

    for way, case, (whole, part) in ways(cases, call, share=3):
        dtype, op, values, before, after = case
        own = np.array(values * 2).astype(dtype.as_numpy_dtype)
        exact = reduced([own] * hvd.size(), op, before, after).astype(own.dtype)
        assert np.isfinite(exact).all() or op is hvd.Product, case
        for found in whole.numpy():
            np.testing.assert_allclose(
                wide(found), wide(exact), ERRORS[dtype.name], err_msg=f"{way} {case}"
            )
        if op in OPS[:2]:
            mine = rows_of(exact, hvd.rank(), hvd.size())
            np.testing.assert_allclose(wide(part.numpy()), wide(mine), ERRORS[dtype.name])


def check_averages_of_sparse_integers() -> None:
    """Rows that stay apart cannot be rounded: 1 on each of two ranks would be 0."""
    for dtype in (tf.int32, tf.int64, tf.uint8):
        rows = tf.IndexedSlices(tf.ones([1, 2], dtype), tf.constant([hvd.rank() % 2]))
        for way, attempt in both(lambda rows=rows: hvd.allreduce(rows).values):
            close(attempt(), np.full((hvd.size(), 2), 1 / hvd.size()), (way, dtype), 1e-6)


def check_adasum() -> None:
    cases = [(dtype, shape) for dtype in REALS for shape in ((), (1,), (9,), (4, 5))]
    lots = [given(shape, dtype, seed=4) for dtype, shape in cases]
    own = [tf.constant(each[hvd.rank()]) for each in lots]

    def call() -> list[Any]:
        return [
            *(hvd.allreduce(each, op=hvd.Adasum) for each in own),
            *hvd.grouped_allreduce(own[:3], op=hvd.Adasum),
        ]

    for way, attempt in both(call):
        for one, tensors in zip(attempt(), lots + lots[:3], strict=True):
            close(one, adasum([each.astype(np.float64) for each in tensors]), way)


def check_groups() -> None:
    kinds = [tf.float32, tf.float16, tf.int64, tf.float64, tf.float32]
    lots = [given((n + 1, 2), dtype, seed=n) for n, dtype in enumerate(kinds)]
    lots[2] = [each + 2**40 + 1 for each in lots[2]]
    group = [tf.constant(each[hvd.rank()]) for each in lots]
    for op in (hvd.Sum, hvd.Average):
        for way, attempt in both(lambda op=op: hvd.grouped_allreduce(group, op=op)):
            found = attempt()
            assert isinstance(found, list)
            for one, tensors in zip(found, lots, strict=True):
                close(one, reduced(tensors, op), (way, op.name))
    (only,) = hvd.grouped_allreduce([tf.ones(2)], op=hvd.Sum)
    close(only, np.full(2, hvd.size()))
    assert hvd.grouped_allreduce([]) == []
    scaled = hvd.grouped_allreduce(group[:1], op=hvd.Average, postscale_factor=2.0, name="group")
    close(scaled[0], reduced(lots[0], hvd.Average, 1.0, 2.0))


def check_compression() -> None:
    tensors, whole = given((50,), seed=9), given((3,), tf.int64)
    own = [tf.constant(each[hvd.rank()]) for each in (tensors, whole)]

    def call() -> list[Any]:
        how = {"op": hvd.Sum, "compression": hvd.Compression.fp16}
        return [
            *(hvd.allreduce(each, **how) for each in own),
            *hvd.grouped_allreduce(own, **how),
            hvd.reducescatter(own[0], **how),
        ]

    for way, attempt in both(call):
        *found, scattered = attempt()
        for one, many in zip(found, (tensors, whole) * 2, strict=True):
            assert one.dtype == many[0].dtype, way
            close(one, reduced(many, hvd.Sum), way, 2e-3 if many is tensors else 0.0)
        close(scattered, rows_of(reduced(tensors, hvd.Sum), hvd.rank(), hvd.size()), way, 2e-3)
        assert not np.array_equal(found[0], hvd.allreduce(own[0], op=hvd.Sum)), way


def check_average_argument() -> None:
    tensors = given((3,), seed=10)
    for average, op in ((True, hvd.Average), (False, hvd.Sum)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = hvd.allreduce(tensors[hvd.rank()], average)
        close(found, reduced(tensors, op))
        (warning,) = caught
        assert warning.category is DeprecationWarning
        assert warning.filename == __file__, warning.filename
    raised(ValueError, lambda: hvd.allreduce(tensors[0], average=True, op=hvd.Sum))


def check_large() -> None:
    for dtype in (tf.float32, tf.bfloat16):
        tensors = given((700_001,), dtype, seed=7)
        own = tf.constant(tensors[hvd.rank()])
        for way, attempt in both(lambda own=own: hvd.allreduce(own, op=hvd.Sum)):
            close(attempt(), reduced(tensors, hvd.Sum), way)


def check_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    shapes = ((size,), (3 * size, 2), (2 * size + 1, 3), (1, 2), (0, 2), (size, 0))
    cases = [
        (dtype, shape, op)
        for dtype in (*REALS, *INTEGERS, tf.complex64)
        for shape in shapes
        for op in (hvd.Average, hvd.Sum)
    ]
    lots = {case: given(case[1], case[0], seed=11) for case in cases}
    own = {case: tf.constant(each[rank]) for case, each in lots.items()}
    for way, case, found in ways(cases, lambda *of: hvd.reducescatter(own[of], op=of[2])):
        close(found, rows_of(reduced(lots[case], case[2]), rank, size), (way, case))
    tensors = given((2 * size, 3), seed=12)
    found = hvd.reducescatter(tensors[rank], prescale_factor=0.5, postscale_factor=3.0, name="rs")
    close(found, rows_of(reduced(tensors, hvd.Average, 0.5, 3.0), rank, size))


def check_grouped_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    lots = [given((size * (n + 1) + n, 2), dtype, seed=n) for n, dtype in enumerate(REALS[:3])]
    group = [tf.constant(each[rank]) for each in lots]
    for way, attempt in both(lambda: hvd.grouped_reducescatter(group, op=hvd.Sum)):
        found = attempt()
        assert isinstance(found, list)
        for one, tensors in zip(found, lots, strict=True):
            close(one, rows_of(reduced(tensors, hvd.Sum), rank, size), way)
    assert hvd.grouped_reducescatter([]) == []
    for op in (hvd.Min, hvd.Adasum):
        raised(ValueError, lambda op=op: hvd.reducescatter(group[0], op=op))


CHECKS = [
    check_allreduce_of_every_type,
    check_what_cannot_be_reduced,
    check_what_is_taken,
    check_results_are_their_own,
    check_factors,
    check_adasum,
    check_groups,
    check_compression,
    check_average_argument,
    check_large,
    check_reducescatter,
    check_grouped_reducescatter,
]
