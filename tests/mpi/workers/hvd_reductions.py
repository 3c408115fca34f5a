"""allreduce and reducescatter in all their forms, against float64. See hvd_ops."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable

import torch
from hvd_reference import INTEGERS, OTHERS, REALS, adasum, close, given, reduced, same
from torch import Tensor

import shanty.torch as hvd

OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
SHAPES = [(), (0,), (5,), (3, 4), (2, 0, 3)]


def has(dtype: torch.dtype, op: int) -> bool:
    if dtype in (torch.bool, torch.uint16, torch.uint32) and op == hvd.Average:
        return False
    return not (dtype.is_complex and op in (hvd.Min, hvd.Max))


def check_allreduce_of_every_type() -> None:
    for dtype in (*REALS, *INTEGERS, *OTHERS):
        for op in OPS:
            if not has(dtype, op):
                continue
            for shape in SHAPES:
                tensors = given(shape, dtype)
                own = tensors[hvd.rank()]
                before = own.clone()
                found = hvd.allreduce(own, op=op)
                assert found.dtype == dtype and found.is_contiguous()
                close(found, reduced(tensors, op), (dtype, op.name, shape))
                same(own, before)


def check_what_cannot_be_reduced() -> None:
    for tensor, op in [
        (torch.ones(2, dtype=torch.bool), hvd.Average),
        (torch.ones(2, dtype=torch.complex64), hvd.Max),
        (torch.ones(2, dtype=torch.int32), hvd.Adasum),
        (torch.ones(2, 2).to_sparse(), hvd.Sum),
        (torch.ones(2).to(torch.float8_e5m2), hvd.Sum),
        (torch.ones(2), 17),
    ]:
        try:
            hvd.allreduce(tensor, op=op)
        except ValueError:
            continue
        raise AssertionError(f"{op} of {tensor}")


def check_forms() -> None:
    tensors = given((6,), seed=1)
    expected = reduced(tensors, hvd.Average)
    own = tensors[hvd.rank()]
    close(hvd.allreduce(own), expected)
    handle = hvd.allreduce_async(own)
    close(hvd.synchronize(handle), expected)
    close(own, tensors[hvd.rank()])
    inside = own.clone()
    assert hvd.allreduce_(inside, op=hvd.Sum) is inside
    close(inside, reduced(tensors, hvd.Sum))
    inside = own.clone()
    assert hvd.synchronize(hvd.allreduce_async_(inside, name="forms")) is inside
    close(inside, expected)


def check_strides() -> None:
    whole = given((6, 8), seed=2)
    for view in (
        lambda each: each.t(),
        lambda each: each[::2, 1::3],
        lambda each: each.flip(0),
        lambda each: each[1],
        lambda each: each.view(2, 3, 4, 2).contiguous(memory_format=torch.channels_last),
    ):
        expected = reduced([view(each) for each in whole], hvd.Sum)
        own = whole[hvd.rank()].clone()
        close(hvd.allreduce(view(own), op=hvd.Sum), expected)
        same(own, whole[hvd.rank()])
        part = view(own)
        hvd.allreduce_(part, op=hvd.Sum)
        close(part, expected)
    own = whole[hvd.rank()].clone()
    hvd.allreduce_(own[:, 2], op=hvd.Sum)
    untouched = [0, 1, *range(3, 8)]
    same(own[:, untouched], whole[hvd.rank()][:, untouched])
    same_all = torch.ones(()).expand(4)
    close(hvd.allreduce(same_all, op=hvd.Sum), torch.full((4,), float(hvd.size())))


def check_parameters() -> None:
    weight = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    assert hvd.allreduce_(weight, op=hvd.Sum) is weight
    close(weight.detach(), reduced([torch.full((3,), float(r)) for r in range(hvd.size())], 1))
    assert weight.is_leaf and weight.requires_grad and weight.grad_fn is None
    with torch.no_grad():
        assert not hvd.allreduce(weight).requires_grad


def check_factors() -> None:
    for dtype in (*REALS, torch.int32, torch.int64, torch.complex64):
        for op in OPS[:2] if dtype.is_complex else OPS:
            for before, after in ((0.5, 1.0), (1.0, 3.0), (2.5, 0.5)):
                tensors = given((7,), dtype, seed=3)
                expected = reduced(tensors, op, before, after)
                factors = {"prescale_factor": before, "postscale_factor": after}
                what = dtype, op.name, before, after
                close(hvd.allreduce(tensors[hvd.rank()], op=op, **factors), expected, what)
                inside = tensors[hvd.rank()].clone()
                close(hvd.allreduce_(inside, op=op, **factors), expected, what)


def check_factors_of_half_precision() -> None:
    """They need not be numbers of the type, nor what comes in between: it is rounded once."""
    for dtype in (torch.float16, torch.bfloat16):
        for values, before, after in (
            ((7.0, 50.0), 0.7, 1.0),
            ((1e-3, 6e-3), 1e5, 1.0),
            ((60000.0, 30000.0), 1.0, 1e-8),
            ((30000.0, 20000.0), 1e-8, 1e8),
        ):
            for op in OPS[:2]:
                own = torch.tensor(values, dtype=dtype)
                expected = own.double() * before * after * (hvd.size() if op == hvd.Sum else 1)
                how = {"op": op, "prescale_factor": before, "postscale_factor": after}
                for found in (hvd.allreduce(own, **how), hvd.grouped_allreduce([own], **how)[0]):
                    torch.testing.assert_close(found, expected.to(dtype))


def check_adasum() -> None:
    for dtype in REALS:
        for shape in ((), (1,), (9,), (4, 5)):
            tensors = given(shape, dtype, seed=4)
            found = hvd.allreduce(tensors[hvd.rank()], op=hvd.Adasum)
            close(found, adasum([each.double() for each in tensors]), (dtype, shape))
    equal = torch.tensor([3.0, -4.0])
    close(hvd.allreduce(equal, op=hvd.Adasum), equal)
    apart = torch.eye(hvd.size())
    close(hvd.allreduce(apart[hvd.rank()], op=hvd.Adasum), torch.ones(hvd.size()))
    close(hvd.allreduce(torch.zeros(3), op=hvd.Adasum), torch.zeros(3))
    lots = [given((5,), seed=seed) for seed in (5, 6)]
    group = [each[hvd.rank()] for each in lots]
    for found, tensors in zip(hvd.grouped_allreduce(group, op=hvd.Adasum), lots, strict=True):
        close(found, adasum([each.double() for each in tensors]))
    scaled = hvd.allreduce(group[0], op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    close(scaled, reduced(lots[0], hvd.Adasum, 2.0, 0.5))


def check_different_orders() -> None:
    """Names bring them together, whatever the order on each rank; many are fused."""
    count = 200
    lots = [given((seed % 7, 3), seed=seed) for seed in range(count)]
    order = list(range(count))
    for turn in range(3):
        random.Random(1000 * turn + hvd.rank()).shuffle(order)
        handles = {}
        for seed in order:
            own = lots[seed][hvd.rank()]
            op = OPS[seed % 3]
            handles[seed] = hvd.allreduce_async(own, name=f"order.{seed}", op=op)
        for seed in order:
            found = hvd.synchronize(handles[seed])
            close(found, reduced(lots[seed], OPS[seed % 3]), seed)


def check_unnamed_in_flight() -> None:
    lots = [given((4,), seed=seed) for seed in range(300)]
    handles = [hvd.allreduce_async(each[hvd.rank()], op=hvd.Sum) for each in lots]
    for handle, tensors in reversed(list(zip(handles, lots, strict=True))):
        close(hvd.synchronize(handle), reduced(tensors, hvd.Sum))


def check_large() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensors = given((700_001,), dtype, seed=7)
        inside = tensors[hvd.rank()].clone()
        handles = [hvd.allreduce_async_(inside, name="large", op=hvd.Sum)]
        small = given((3,), dtype, seed=8)
        handles.append(hvd.allreduce_async(small[hvd.rank()], name="small", op=hvd.Sum))
        close(hvd.synchronize(handles[1]), reduced(small, hvd.Sum))
        close(hvd.synchronize(handles[0]), reduced(tensors, hvd.Sum))


def check_groups() -> None:
    lots = [given((n + 1, 2), seed=n) for n in range(3)]
    group = [each[hvd.rank()] for each in lots]
    expected = [reduced(each, hvd.Average) for each in lots]

    def all_close(found: Iterable[Tensor], expected: list[Tensor] = expected) -> None:
        for one, other in zip(found, expected, strict=True):
            close(one, other)

    out = hvd.grouped_allreduce(group)
    assert isinstance(out, list)
    all_close(out)
    out = hvd.synchronize(hvd.grouped_allreduce_async(group, name="group"))
    assert isinstance(out, tuple)
    all_close(out)
    all_close(hvd.grouped_allreduce(tuple(group), name="group", op=hvd.Average))
    inside = [each.clone() for each in group]
    for one, other in zip(hvd.grouped_allreduce_(inside), inside, strict=True):
        assert one is other
    all_close(inside)
    inside = [each.clone() for each in group]
    hvd.synchronize(hvd.grouped_allreduce_async_(inside, name="group", postscale_factor=2.0))
    all_close(inside, [reduced(each, hvd.Average, 1.0, 2.0) for each in lots])
    one = hvd.grouped_allreduce([torch.ones(2)], op=hvd.Sum)
    close(one[0], torch.full((2,), float(hvd.size())))
    try:
        hvd.grouped_allreduce([])
    except ValueError:
        return
    raise AssertionError("a group of nothing")


def check_groups_of_several_types() -> None:
    """Each is reduced in its own type, though they belong together."""
    dtypes = [torch.float32, torch.float16, torch.int64, torch.float64, torch.float32]
    lots = [given((n + 1, 2), dtype, seed=n) for n, dtype in enumerate(dtypes)]
    lots[2] = [each + 2**40 + 1 for each in lots[2]]
    group = [each[hvd.rank()] for each in lots]
    for op in (hvd.Sum, hvd.Average):
        for found in (
            hvd.grouped_allreduce(group, op=op),
            hvd.grouped_allreduce_([each.clone() for each in group], op=op),
        ):
            for one, tensors in zip(found, lots, strict=True):
                close(one, reduced(tensors, op), op.name)


def check_compression() -> None:
    tensors = given((50,), seed=9)
    found = hvd.allreduce(tensors[hvd.rank()], compression=hvd.Compression.fp16)
    assert found.dtype == torch.float32
    close(found.half(), reduced(tensors, hvd.Average))
    assert not torch.equal(found, hvd.allreduce(tensors[hvd.rank()]))
    whole = given((3,), torch.int64)
    found = hvd.allreduce(whole[hvd.rank()], compression=hvd.Compression.fp16, op=hvd.Sum)
    close(found, reduced(whole, hvd.Sum))
    pair = [each[hvd.rank()] for each in (tensors, whole)]
    found, second = hvd.grouped_allreduce(pair, compression=hvd.Compression.fp16, op=hvd.Sum)
    close(found.half(), reduced(tensors, hvd.Sum))
    close(second, reduced(whole, hvd.Sum))


def check_average_argument() -> None:
    tensors = given((3,), seed=10)
    for average, op in ((True, hvd.Average), (False, hvd.Sum)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = hvd.allreduce(tensors[hvd.rank()], average)
        close(found, reduced(tensors, op))
        (warning,) = caught
        assert warning.category is DeprecationWarning and warning.filename == __file__
    try:
        hvd.allreduce(tensors[0], average=True, op=hvd.Sum)
    except ValueError:
        return
    raise AssertionError("both were taken")


def check_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in (*REALS, torch.int32, torch.int64):
        for shape in ((size,), (3 * size, 2), (2 * size + 1, 3), (1, 2), (0, 2), (size, 0)):
            for op in (hvd.Average, hvd.Sum):
                tensors = given(shape, dtype, seed=11)
                rows = [shape[0] // size + (each < shape[0] % size) for each in range(size)]
                expected = torch.split(reduced(tensors, op), rows)[rank]
                what = dtype, shape, op.name
                close(hvd.reducescatter(tensors[rank], op=op), expected, what)
                found = hvd.synchronize(hvd.reducescatter_async(tensors[rank], op=op, name="rs"))
                close(found, expected, what)
    tensors = given((2 * size, 3), seed=12)
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    expected = torch.split(reduced(tensors, hvd.Average, 0.5, 3.0), 2)[rank]
    close(hvd.reducescatter(tensors[rank], **factors), expected)
    wide = [each.t() for each in given((3, 2 * size), seed=12)]
    expected = torch.split(reduced(wide, hvd.Sum), 2)[rank]
    close(hvd.reducescatter(wide[rank], op=hvd.Sum), expected)
    compressed = hvd.reducescatter(wide[rank], op=hvd.Sum, compression=hvd.Compression.fp16)
    assert compressed.dtype == torch.float32
    close(compressed.half(), expected)


def check_grouped_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    lots = [given((size * (n + 1), 2), dtype, seed=n) for n, dtype in enumerate(REALS[:3])]
    group = [each[rank] for each in lots]
    expected = [torch.split(reduced(each, hvd.Sum), n + 1)[rank] for n, each in enumerate(lots)]
    found = hvd.grouped_reducescatter(group, op=hvd.Sum)
    assert isinstance(found, list)
    later = hvd.synchronize(hvd.grouped_reducescatter_async(group, op=hvd.Sum, name="grs"))
    assert isinstance(later, tuple)
    for one, two, other in zip(found, later, expected, strict=True):
        close(one, other)
        close(two, other)
    for op in (hvd.Min, hvd.Adasum):
        try:
            hvd.reducescatter(group[0], op=op)
        except ValueError:
            continue
        raise AssertionError(op)


CHECKS = [
    check_allreduce_of_every_type,
    check_what_cannot_be_reduced,
    check_forms,
    check_strides,
    check_parameters,
    check_factors,
    check_factors_of_half_precision,
    check_adasum,
    check_different_orders,
    check_unnamed_in_flight,
    check_large,
    check_groups,
    check_groups_of_several_types,
    check_compression,
    check_average_argument,
    check_reducescatter,
    check_grouped_reducescatter,
]
