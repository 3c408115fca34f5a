"""What PyTorch alone has of allreduce: handles, views, parameters, tensors in flight."""

from __future__ import annotations

import random

import torch
from checks import raised
from on_torch import forms
from references import close, given, reduced, same

import shanty.torch as hvd

OPS = [hvd.Average, hvd.Sum, hvd.Min]


def check_forms() -> None:
    """Without an op it is the average; none of them but those in place change the tensor."""
    tensors = given((6,), seed=1)
    own = tensors[hvd.rank()]
    for form in forms("allreduce"):
        found = form(own)
        assert found.is_contiguous()
        close(found, reduced(tensors, hvd.Average))
        same(own, tensors[hvd.rank()])


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


def check_large_in_flight() -> None:
    """What is submitted after a large tensor may be ready before it."""
    for dtype in (torch.float32, torch.bfloat16):
        tensors = given((700_001,), dtype, seed=7)
        inside = tensors[hvd.rank()].clone()
        handles = [hvd.allreduce_async_(inside, name="large", op=hvd.Sum)]
        small = given((3,), dtype, seed=8)
        handles.append(hvd.allreduce_async(small[hvd.rank()], name="small", op=hvd.Sum))
        close(hvd.synchronize(handles[1]), reduced(small, hvd.Sum))
        close(hvd.synchronize(handles[0]), reduced(tensors, hvd.Sum))


def check_a_group_of_nothing() -> None:
    raised(ValueError, lambda: hvd.grouped_allreduce([]))


def check_strides_of_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    wide = [each.t() for each in given((3, 2 * size), seed=12)]
    expected = reduced(wide, hvd.Sum)[2 * rank : 2 * rank + 2]
    close(hvd.reducescatter(wide[rank], op=hvd.Sum), expected)
    compressed = hvd.reducescatter(wide[rank], op=hvd.Sum, compression=hvd.Compression.fp16)
    assert compressed.dtype == torch.float32
    close(compressed.half(), expected)
