"""allreduce and reducescatter against float64, whatever the framework. See framework.py."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from checks import raised
from framework import forms_of, fw, hvd, ones
from references import (
    ERRORS,
    INTEGERS,
    REALS,
    adasum,
    close,
    given,
    name_of,
    reduced,
    rows_of,
    same,
)  # fmt: skip

OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
SHAPES = [(), (0,), (5,), (3, 4), (2, 0, 3)]


def has(dtype: str, op: int) -> bool:
    if dtype in fw.WITHOUT_AVERAGE and op == hvd.Average:
        return False
    return not ("complex" in dtype and op in (hvd.Min, hvd.Max))


def check_allreduce_of_every_type() -> None:
    """In one graph all of them are under way at once."""
    cases = [
        (dtype, op, shape)
        for dtype in fw.REDUCED
        for op in OPS
        if has(dtype, op)
        for shape in SHAPES
    ]
    lots = {case: given(case[2], case[0]) for case in cases}
    own = {case: fw.tensor(each[hvd.rank()]) for case, each in lots.items()}
    for form, some in forms_of("allreduce", cases, 7):
        for way, case, found in fw.ways(some, lambda *of, f=form: f(own[of], op=of[1])):
            assert name_of(found.dtype) == case[0], (way, case)
            close(found, reduced(lots[case], case[1]), (way, case))
    for case, tensors in lots.items():
        same(own[case], tensors[hvd.rank()])


def check_what_cannot_be_reduced() -> None:
    for tensor, op in [
        (ones(2, dtype="bool"), hvd.Average),
        (ones(2, dtype="complex64"), hvd.Max),
        (ones(2, dtype="int32"), hvd.Adasum),
        *((each, hvd.Sum) for each in fw.unreducible()),
        (ones(2), 17),
    ]:
        raised(ValueError, lambda tensor=tensor, op=op: hvd.allreduce(tensor, op=op))


def check_factors() -> None:
    cases = [
        (dtype, op, before, after)
        for dtype in (*REALS, "int32", "int64", "complex64")
        for op in (OPS[:2] if dtype == "complex64" else OPS)
        for before, after in ((0.5, 1.0), (1.0, 3.0), (2.5, 0.5))
    ]
    lots = {case: given((7,), case[0], seed=3) for case in cases}
    for form, some in forms_of("allreduce", cases, 4):

        def call(*case: Any, form: Any = form) -> Any:
            own = fw.tensor(lots[case][hvd.rank()])
            return form(own, op=case[1], prescale_factor=case[2], postscale_factor=case[3])

        for way, case, found in fw.ways(some, call):
            close(found, reduced(lots[case], *case[1:]), (way, case))


def check_factors_of_half_precision() -> None:
    """They need not be numbers of the type, nor what comes in between: it is rounded once."""
    cases = [
        (dtype, op, *factors)
        for dtype in ("float16", "bfloat16")
        for op in OPS
        for factors in (
            ((7.0, 50.0), 0.7, 1.0),
            ((7.0, 50.0), 1.0, 1 / 3),
            ((1e-3, 6e-3), 1e5, 1.0),
            ((60000.0, 30000.0), 1.0, 1e-8),
            ((15000.0, 10000.0), 1e-8, 1e8),
        )
    ]

    def call(dtype: str, op: Any, values: Any, before: float, after: float) -> Any:
        each = fw.tensor(values * 2, dtype)
        how = {"op": op, "prescale_factor": before, "postscale_factor": after}
        (group,) = hvd.grouped_allreduce([each], **how)
        part = hvd.reducescatter(each, **how) if op in OPS[:2] else each
        return hvd.allreduce(each, **how), group, part

    for way, case, (*whole, part) in fw.ways(cases, call, 3):
        dtype, op, values, before, after = case
        own = fw.array(values * 2, dtype)
        exact = fw.wide(fw.array(reduced([own] * hvd.size(), op, before, after), dtype))
        assert np.isfinite(exact).all() or op is hvd.Product, case
        for found in whole:
            np.testing.assert_allclose(
                fw.wide(found), exact, ERRORS[dtype], err_msg=f"{way} {case}"
            )
        if op in OPS[:2]:
            mine = rows_of(exact, hvd.rank(), hvd.size())
            np.testing.assert_allclose(fw.wide(part), mine, ERRORS[dtype])


def check_adasum() -> None:
    cases = [(dtype, shape) for dtype in REALS for shape in ((), (1,), (9,), (4, 5))]
    lots = [given(shape, dtype, seed=4) for dtype, shape in cases]
    own = [fw.tensor(each[hvd.rank()]) for each in lots]

    def call() -> list[Any]:
        return [
            *(hvd.allreduce(each, op=hvd.Adasum) for each in own),
            *hvd.grouped_allreduce(own[:3], op=hvd.Adasum),
        ]

    for way, attempt in fw.both(call):
        for one, tensors in zip(attempt(), lots + lots[:3], strict=True):
            close(one, adasum(tensors), way)
    equal = fw.tensor([3.0, -4.0], "float32")
    close(hvd.allreduce(equal, op=hvd.Adasum), equal)
    apart = fw.tensor(np.eye(hvd.size())[hvd.rank()])
    close(hvd.allreduce(apart, op=hvd.Adasum), np.ones(hvd.size()))
    close(hvd.allreduce(fw.tensor(np.zeros(3)), op=hvd.Adasum), np.zeros(3))
    scaled = hvd.allreduce(own[2], op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    close(scaled, reduced(lots[2], hvd.Adasum, 2.0, 0.5))


def check_large() -> None:
    for dtype in ("float32", "bfloat16"):
        tensors = given((700_001,), dtype, seed=7)
        own = fw.tensor(tensors[hvd.rank()])
        for way, attempt in fw.both(lambda own=own: hvd.allreduce(own, op=hvd.Sum)):
            close(attempt(), reduced(tensors, hvd.Sum), way)


def check_groups() -> None:
    """Each is reduced in its own type, though they belong together."""
    kinds = ["float32", "float16", "int64", "float64", "float32"]
    lots = [given((n + 1, 2), dtype, seed=n) for n, dtype in enumerate(kinds)]
    lots[2] = [each + 2**40 + 1 for each in lots[2]]
    group = [fw.tensor(each[hvd.rank()]) for each in lots]
    for form, kind in fw.grouped("grouped_allreduce"):
        for how in (
            {"op": hvd.Sum},
            {"op": hvd.Average, "name": "group"},
            {"op": hvd.Average, "name": "group", "postscale_factor": 2.0},
        ):
            for way, attempt in fw.both(lambda f=form, how=how: f(group, **how)):
                found = attempt()
                assert isinstance(found, kind)
                for one, tensors in zip(found, lots, strict=True):
                    exact = reduced(tensors, how["op"], 1.0, how.get("postscale_factor", 1.0))
                    close(one, exact, (way, how))
        for one, tensors in zip(form(tuple(group)), lots, strict=True):
            close(one, reduced(tensors, hvd.Average))
        (only,) = form([ones(2)], op=hvd.Sum)
        close(only, np.full(2, hvd.size()))


def check_compression() -> None:
    tensors, whole = given((50,), seed=9), given((3,), "int64")
    own = [fw.tensor(each[hvd.rank()]) for each in (tensors, whole)]

    def call() -> list[Any]:
        how = {"op": hvd.Sum, "compression": hvd.Compression.fp16}
        return [
            *(hvd.allreduce(each, **how) for each in own),
            *hvd.grouped_allreduce(own, **how),
            hvd.reducescatter(own[0], **how),
        ]

    for way, attempt in fw.both(call):
        *found, scattered = attempt()
        for one, many in zip(found, (tensors, whole) * 2, strict=True):
            assert name_of(one.dtype) == name_of(many[0].dtype), way
            close(one, reduced(many, hvd.Sum), way, 2e-3 if many is tensors else 0.0)
        assert name_of(scattered.dtype) == "float32"
        close(scattered, rows_of(reduced(tensors, hvd.Sum), hvd.rank(), hvd.size()), way, 2e-3)
        plain = hvd.allreduce(own[0], op=hvd.Sum)
        assert not np.array_equal(fw.wide(found[0]), fw.wide(plain)), way


def check_average_argument() -> None:
    tensors = given((3,), seed=10)
    own = fw.tensor(tensors[hvd.rank()])
    for average, op in ((True, hvd.Average), (False, hvd.Sum)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = hvd.allreduce(own, average)
        close(found, reduced(tensors, op))
        (warning,) = caught
        assert warning.category is DeprecationWarning
        assert warning.filename == __file__, warning.filename
    raised(ValueError, lambda: hvd.allreduce(own, average=True, op=hvd.Sum))


def check_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    shapes = ((size,), (3 * size, 2), (2 * size + 1, 3), (1, 2), (0, 2), (size, 0))
    cases = [
        (dtype, shape, op)
        for dtype in (*REALS, *INTEGERS, "complex64")
        for shape in shapes
        for op in (hvd.Average, hvd.Sum)
    ]
    lots = {case: given(case[1], case[0], seed=11) for case in cases}
    own = {case: fw.tensor(each[rank]) for case, each in lots.items()}
    tensors = given((2 * size, 3), seed=12)
    for form, some in forms_of("reducescatter", cases, 3):
        for way, case, found in fw.ways(some, lambda *of, f=form: f(own[of], op=of[2], name="r")):
            close(found, rows_of(reduced(lots[case], case[2]), rank, size), (way, case))
        scaled = form(fw.tensor(tensors[rank]), prescale_factor=0.5, postscale_factor=3.0)
        close(scaled, rows_of(reduced(tensors, hvd.Average, 0.5, 3.0), rank, size))


def check_grouped_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    lots = [given((size * (n + 1) + n, 2), dtype, seed=n) for n, dtype in enumerate(REALS[:3])]
    group = [fw.tensor(each[rank]) for each in lots]
    for form, kind in fw.grouped("grouped_reducescatter"):
        for way, attempt in fw.both(lambda f=form: f(group, op=hvd.Sum)):
            found = attempt()
            assert isinstance(found, kind)
            for one, tensors in zip(found, lots, strict=True):
                close(one, rows_of(reduced(tensors, hvd.Sum), rank, size), way)
    for op in (hvd.Min, hvd.Adasum):
        raised(ValueError, lambda op=op: hvd.reducescatter(group[0], op=op))
