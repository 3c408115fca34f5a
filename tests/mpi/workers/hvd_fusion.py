"""Many tensors reduced as one: whatever their sizes and types, and in whatever company they come.

Run by ../test_hvd_ops.py, within hvd_ops.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from mpi4py import MPI
from torch import Tensor

import shanty.torch as hvd
from shanty.collectives import pair_reduction as pair
from shanty.collectives import process_sets
from shanty.collectives import shared_memory as shared
from shanty.collectives.request import TensorEntry
from shanty.collectives.tensor_queue import Bundle

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
    tensors: list[Tensor],
    numbers: list[int],
    sizes: Sequence[int] | Mapping[int, int],
    dtype: torch.dtype,
    op: int,
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
        torch.zeros(700, 600) if hvd.rank() else torch.zeros(600, 700).t(),
    ]
    for i, each in enumerate(tensors):
        each.copy_(values(hvd.rank(), i, each.numel(), torch.float32).view(each.shape))
    hvd.grouped_allreduce_(tensors, name="strides", op=hvd.Sum)
    agree(tensors, [0, 1, 2], [24, 120, 420_000], torch.float32, hvd.Sum)


def check_without_room_to_share() -> None:
    """Where one rank cannot see the others' memory, all go through a buffer."""
    made = shared._mapped
    if hvd.rank() == hvd.size() - 1:
        shared._mapped = lambda path: None
    try:
        comm = MPI.COMM_WORLD.Dup()
        assert shared.share(comm, 1 << 12) is None
        comm.Free()
        controller = process_sets.controllers[0]
        fusion = controller._executor._fusion
        kept = fusion._pair, fusion._shared, fusion._tried
        fusion._pair, fusion._shared, fusion._tried = None, None, False
        try:
            sizes = [10, 2000, 30, 200_000]
            tensors = [values(hvd.rank(), i, size, torch.float32) for i, size in enumerate(sizes)]
            hvd.grouped_allreduce_(tensors, name="buffered", op=hvd.Average)
            agree(tensors, [0, 1, 2, 3], sizes, torch.float32, hvd.Average)
        finally:
            fusion._pair, fusion._shared, fusion._tried = kept
    finally:
        shared._mapped = made


def reduce_by_name(names: list[str], tensors: list[Tensor], op: int = hvd.Sum) -> list[str]:
    """All of them, under way together; the errors of those that failed."""
    handles = [
        hvd.allreduce_async_(tensor, name=name, op=op)
        for name, tensor in zip(names, tensors, strict=True)
    ]
    errors = []
    for handle in handles:
        try:
            hvd.synchronize(handle)
        except hvd.HorovodInternalError as error:
            errors.append(str(error))
    return errors


def check_calls_that_come_again() -> None:
    """As they came before, and not quite: each changes what is not as it was in the last step."""
    dtype, sizes = torch.float32, [100 + i for i in range(30)]
    names = [f"again.{i}" for i in range(30)]
    pending = process_sets.controllers[0]._pending
    bundled = 0
    recognised = pending._recognised

    def count(entries: list[TensorEntry], since: float) -> Bundle | None:
        nonlocal bundled
        made = recognised(entries, since)
        bundled += made is not None and len(entries) == len(names)
        return made

    def step(numbers: list[int], mine: list[int] | None = None, op: int = hvd.Sum) -> None:
        mine = numbers if mine is None else mine
        tensors = {i: values(hvd.rank(), i, sizes[i], dtype) for i in numbers}
        hvd.barrier()
        assert not reduce_by_name([names[i] for i in mine], [tensors[i] for i in mine], op)
        agree([tensors[i] for i in numbers], numbers, sizes, dtype, op)

    def again(enough: int) -> None:
        """Until the calls of a step were recognised so often on every rank."""
        nonlocal bundled
        bundled = 0
        for _ in range(200):  # of a step that takes long, some are taken before the others
            step(everything)
            least = hvd.allreduce(torch.tensor(bundled), op=hvd.Min, name="bundled")
            if int(least) >= enough:
                return
        raise AssertionError(f"recognised {bundled} times, not {enough}")

    everything = list(range(30))
    mixed = random.Random(hvd.rank()).sample(everything, 30)
    pending._recognised = count
    try:
        again(3)
        step(everything, mixed)
        step(everything)
        step(everything[:20])
        step(everything, op=hvd.Max)
        step(everything, op=hvd.Average)
        again(2)

        # Some of them come late from one rank, and one is another thing there.
        tensors = [values(hvd.rank(), i, sizes[i], dtype) for i in everything]
        early = everything if hvd.rank() else everything[:10]
        handles = {i: hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum) for i in early}
        hvd.synchronize(handles[3])
        late = [i for i in everything if i not in handles]
        for i in late:
            handles[i] = hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum)
        for handle in handles.values():
            hvd.synchronize(handle)
        agree(tensors, everything, sizes, dtype, hvd.Sum)
        tensors = [values(hvd.rank(), i, sizes[i], dtype) for i in everything]
        tensors[7] = torch.zeros(5 + hvd.rank())
        errors = reduce_by_name(names, tensors)
        assert len(errors) == 1, errors
        assert "again.7" in errors[0], errors
        agree(tensors[:7], everything[:7], sizes, dtype, hvd.Sum)
        agree(tensors[8:], everything[8:], sizes, dtype, hvd.Sum)
        again(2)
    finally:
        del pending._recognised


def check_a_name_twice_among_calls_that_come_again() -> None:
    for _ in range(4):
        tensors = [values(hvd.rank(), i, 50, torch.float32) for i in range(10)]
        handles = [
            hvd.allreduce_async_(each, name=f"twice.{i}", op=hvd.Sum)
            for i, each in enumerate(tensors)
        ]
        for take in (
            lambda: hvd.allreduce_async_(torch.ones(50), name="twice.4", op=hvd.Sum),
            lambda: hvd.allreduce_async(torch.ones(50), name="twice.4", op=hvd.Sum),
        ):
            try:
                take()
            except ValueError as error:
                assert "allreduce.twice.4 is under way already" in str(error)
            else:
                raise AssertionError("a name was taken twice")
        for handle in handles:
            assert hvd.synchronize(handle) is tensors[handle - handles[0]]
            assert hvd.synchronize(handle) is None
        agree(tensors, list(range(10)), [50] * 10, torch.float32, hvd.Sum)


def check_much_and_little_shared_memory() -> None:
    """Whichever segment two ranks go through, and however they change it on the way."""
    if hvd.size() != 2:
        return
    drawn = random.Random(1)
    sizes = [drawn.randrange(1000, 130_000) for _ in range(150)] + [300_002, 2_000_003, 262_144]
    numbers = list(range(len(sizes)))
    fusion = process_sets.controllers[0]._executor._fusion
    weighty, pair.WEIGHTY = pair.WEIGHTY, 0
    seen = set()
    try:
        hvd.grouped_allreduce_([torch.ones(2), torch.ones(3)], name="first")
        agreed = fusion._pair._agreed

        def other(choice: pair._Choice) -> pair.Segment:
            choice.now = drawn.choice([pair._NEAR, pair._FAR])
            seen.add(choice.now)
            return agreed(choice)

        fusion._pair._agreed = other
        for step in range(12):
            dtype = (torch.float32, torch.float64)[step % 2]
            chosen = numbers if step % 3 else drawn.sample(numbers, 60)
            numbered = [step + i for i in chosen]  # other values in every step
            tensors = [values(hvd.rank(), step + i, sizes[i] // 2, dtype) for i in chosen]
            if step % 2:
                hvd.grouped_allreduce_(tensors, name=f"segments.{step % 4}", op=hvd.Sum)
            else:
                assert not reduce_by_name([f"segments.{i}" for i in chosen], tensors)
            halves = {step + i: sizes[i] // 2 for i in chosen}
            agree(tensors, numbered, halves, dtype, hvd.Sum)
            lone = values(hvd.rank(), step, 600_001, dtype)
            hvd.allreduce_(lone, name=f"lone.{step % 2}", op=hvd.Average)
            agree([lone], [step], {step: 600_001}, dtype, hvd.Average)
        assert seen == {pair._NEAR, pair._FAR}
        assert set(fusion._pair._segments) == seen
        cut = [segment._whole for segment in fusion._pair._segments.values()]
        assert all(cut), "large tensors went through no segment"
        low = torch.full((weighty,), float("nan") if hvd.rank() else 1.0)
        assert hvd.allreduce(low, name="nan", op=hvd.Min).isnan().all()
    finally:
        pair.WEIGHTY = weighty
        vars(fusion._pair).pop("_agreed", None)


CHECKS = [
    check_sizes_types_and_operations,
    check_changing_company,
    check_one_name_changes_what_it_is,
    check_factors_and_other_outputs,
    check_tensors_of_any_stride,
    check_without_room_to_share,
    check_calls_that_come_again,
    check_a_name_twice_among_calls_that_come_again,
    check_much_and_little_shared_memory,
]
