"""Many tensors reduced as one: whatever their sizes and types, and in whatever company they come.

Run by ../test_hvd_ops.py, within hvd_ops.py.
"""

from __future__ import annotations

import random

import torch
from mpi4py import MPI
from torch import Tensor

import shanty.torch as hvd
from shanty.torch import shared
from shanty.torch.hvd import registry

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
OPS = {
    hvd.Sum: lambda every: every.sum(0),
    hvd.Average: lambda every: every.mean(0),
    hvd.Min: lambda every: every.amin(0),
    hvd.Max: lambda every: every.amax(0),
    hvd.Product: lambda every: every.prod(0),
}
MIB = 1 << 20
PERIOD = 4  # elements after which the values begin anew


def values(rank: int, number: int, elements: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers, which every type holds and no order of adding changes."""
    some = (torch.arange(PERIOD) + 3 * number + 5 * rank) % PERIOD + 1
    return some.to(dtype).repeat(-(-elements // PERIOD))[:elements].clone()


def agree(
    tensors: list[Tensor], numbers: list[int], sizes: list[int], dtype: torch.dtype, op: int
) -> None:
    for tensor, number in zip(tensors, numbers, strict=True):
        parts = [
            values(rank, number, PERIOD, dtype).to(torch.float64) for rank in range(hvd.size())
        ]
        expected = OPS[op](torch.stack(parts))
        if not dtype.is_floating_point:
            expected = expected.trunc()
        reached = tensor.flatten()
        assert len(reached) == sizes[number]
        whole = sizes[number] // PERIOD * PERIOD
        for rows, wanted in (
            (reached[:whole].view(-1, PERIOD), expected),
            (reached[whole:].view(1, -1), expected[: sizes[number] - whole]),
        ):
            close = torch.isclose(
                rows, wanted.to(dtype), rtol=1e-2 if dtype.itemsize == 2 else 1e-6
            )
            assert close.all(), (number, dtype, op)


def sizes_for(dtype: torch.dtype) -> list[int]:
    """Elements: none, one, odd numbers, many pieces' worth of small ones, and large ones."""
    mib = MIB // dtype.itemsize
    return [0, 1, 7, 1000, mib // 3, mib // 3 + 1, mib // 2, mib - 1, mib, mib + 1, 2 * mib, 63]


def check_sizes_types_and_operations() -> None:
    for dtype in DTYPES:
        for op in OPS:
            # Where tensors lie has nothing to do with what becomes of them.
            sizes = sizes_for(dtype) if op is hvd.Sum else [0, 1, 7, 1000, 63]
            tensors = [values(hvd.rank(), i, size, dtype) for i, size in enumerate(sizes)]
            hvd.grouped_allreduce_(tensors, name=f"{dtype}.{op}", op=op)
            agree(tensors, list(range(len(sizes))), sizes, dtype, op)


def check_changing_company() -> None:
    """The same names, in other orders and numbers each time."""
    dtype, sizes = torch.float32, [5000 + 111 * i for i in range(60)]
    for step in range(12):
        chosen = random.Random(step).sample(range(60), 5 + 5 * (step % 10))
        order = list(chosen)
        random.Random(100 * step + hvd.rank()).shuffle(order)
        mine = {i: values(hvd.rank(), i, sizes[i], dtype).view(1, -1) for i in order}
        handles = [hvd.allreduce_async_(mine[i], name=f"company.{i}", op=hvd.Sum) for i in order]
        for handle in handles:
            hvd.synchronize(handle)
        agree([mine[i] for i in chosen], chosen, sizes, dtype, hvd.Sum)


def check_one_name_changes_what_it_is() -> None:
    for dtype, size, op in (
        (torch.float32, 10, hvd.Sum),
        (torch.float32, 12, hvd.Sum),
        (torch.float64, 12, hvd.Sum),
        (torch.float64, 12, hvd.Max),
        (torch.float32, 10, hvd.Sum),
    ):
        for _ in range(2):
            tensors = [values(hvd.rank(), i, size, dtype) for i in (0, 1)]
            handles = [
                hvd.allreduce_async_(each, name=f"changes.{i}", op=op)
                for i, each in enumerate(tensors)
            ]
            for handle in handles:
                hvd.synchronize(handle)
            agree(tensors, [0, 1], [size, size], dtype, op)


def check_factors_and_other_outputs() -> None:
    tensors = [values(hvd.rank(), i, 100, torch.float32) for i in range(5)]
    kept = [each.clone() for each in tensors]
    reduced = hvd.grouped_allreduce(
        tensors, name="factors", op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0
    )
    assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))
    agree([each / 2 for each in reduced], list(range(5)), [100] * 5, torch.float32, hvd.Sum)


def check_tensors_of_any_stride() -> None:
    tensors = [
        torch.zeros(4, 6).t(),
        torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ]
    for i, each in enumerate(tensors):
        each.copy_(values(hvd.rank(), i, each.numel(), torch.float32).view(each.shape))
    hvd.grouped_allreduce_(tensors, name="strides", op=hvd.Sum)
    agree(tensors, [0, 1], [24, 120], torch.float32, hvd.Sum)


def check_without_room_to_share() -> None:
    """Where one rank cannot see the others' memory, all go through a buffer."""
    made = shared._mapped
    if hvd.rank() == hvd.size() - 1:
        shared._mapped = lambda path: None
    try:
        comm = MPI.COMM_WORLD.Dup()
        assert shared.SharedMemory.form(comm, 1 << 12) is None
        comm.Free()
        engine = registry.engines[0]
        fusion = engine._executor._fusion
        kept, fusion._shared = fusion._shared, None
        try:
            sizes = [10, 2000, 30]
            tensors = [values(hvd.rank(), i, size, torch.float32) for i, size in enumerate(sizes)]
            hvd.grouped_allreduce_(tensors, name="buffered", op=hvd.Average)
            agree(tensors, [0, 1, 2], sizes, torch.float32, hvd.Average)
        finally:
            fusion._shared = kept
    finally:
        shared._mapped = made


CHECKS = [
    check_sizes_types_and_operations,
    check_changing_company,
    check_one_name_changes_what_it_is,
    check_factors_and_other_outputs,
    check_tensors_of_any_stride,
    check_without_room_to_share,
]
