"""Many tensors reduced as one: whatever their sizes and types, and in whatever company they come.

See run_checks.py.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from checks import raised
from framework import fw
from mpi4py import MPI
from references import close, given, reduced
from torch import Tensor

import shanty.torch as hvd
from shanty.collectives import pair_reduction as pair
from shanty.collectives import process_sets
from shanty.collectives import shared_memory as shared
from shanty.collectives.request import TensorEntry
from shanty.collectives.tensor_queue import Bundle

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
OPS = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)
MIB = 1 << 20
PERIOD = 4  # elements after which the values begin anew


def repeated(values: np.ndarray, elements: int) -> np.ndarray:
    """As `np.resize`, which takes a hundred times as long for a few values."""
    return np.tile(values, -(-elements // PERIOD))[:elements]


def own(number: int, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What this rank gives in the tensor of that number."""
    some = fw.wide(given((PERIOD,), dtype, seed=number)[hvd.rank()])
    return fw.array(repeated(some, elements), dtype)


def agree(tensors: list[Tensor], numbers: list[int], op: int = hvd.Sum) -> None:
    """Each of these has the reduction of what the ranks have given in the one of its number."""
    for tensor, number in zip(tensors, numbers, strict=True):
        exact = reduced(given((PERIOD,), tensor.dtype, seed=number), op)
        close(tensor.flatten(), repeated(exact, tensor.numel()), number)


def sizes_for(dtype: torch.dtype) -> list[int]:
    """Elements: none, one, odd numbers, many pieces' worth of small ones, and large ones."""
    mib = MIB // dtype.itemsize
    return [0, 1, 7, 1000, mib // 3, mib // 3 + 1, mib // 2, mib - 1, mib, mib + 1, 2 * mib, 63]


def check_sizes_types_and_operations() -> None:
    for dtype in DTYPES:
        for op in OPS:
            # Where tensors lie has nothing to do with what becomes of them.
            sizes = sizes_for(dtype) if op is hvd.Sum else [0, 1, 7, 1000, 63]
            tensors = [own(i, size, dtype) for i, size in enumerate(sizes)]
            hvd.grouped_allreduce_(tensors, name=f"{dtype}.{op}", op=op)
            agree(tensors, list(range(len(sizes))), op)


def check_changing_company() -> None:
    """The same names, in other orders and numbers each time."""
    for step in range(12):
        chosen = random.Random(step).sample(range(60), 5 + 5 * (step % 10))
        order = list(chosen)
        random.Random(100 * step + hvd.rank()).shuffle(order)
        mine = {i: own(i, 5000 + 111 * i).view(1, -1) for i in order}
        handles = [hvd.allreduce_async_(mine[i], name=f"company.{i}", op=hvd.Sum) for i in order]
        for handle in handles:
            hvd.synchronize(handle)
        agree([mine[i] for i in chosen], chosen)


def check_one_name_changes_what_it_is() -> None:
    for dtype, size, op in (
        (torch.float32, 10, hvd.Sum),
        (torch.float32, 12, hvd.Sum),
        (torch.float64, 12, hvd.Sum),
        (torch.float64, 12, hvd.Max),
        (torch.float32, 10, hvd.Sum),
    ):
        for _ in range(2):
            tensors = [own(i, size, dtype) for i in (0, 1)]
            assert not reduce_by_name(["changes.0", "changes.1"], tensors, op)
            agree(tensors, [0, 1], op)


def check_factors_and_other_outputs() -> None:
    tensors = [own(i, 100) for i in range(5)]
    kept = [each.clone() for each in tensors]
    how = {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 4.0}
    found = hvd.grouped_allreduce(tensors, name="factors", **how)
    assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))
    agree([each / 2 for each in found], list(range(5)))


def check_tensors_of_any_stride() -> None:
    tensors = [
        torch.zeros(4, 6).t(),
        torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.zeros(700, 600) if hvd.rank() else torch.zeros(600, 700).t(),
    ]
    for i, each in enumerate(tensors):
        each.copy_(own(i, each.numel()).view(each.shape))
    hvd.grouped_allreduce_(tensors, name="strides", op=hvd.Sum)
    agree(tensors, [0, 1, 2])


def check_without_room_to_share() -> None:
    """Where one rank cannot see the others' memory, all go through a buffer."""
    made = shared._mapped
    if hvd.rank() == hvd.size() - 1:
        shared._mapped = lambda path: None
    try:
        comm = MPI.COMM_WORLD.Dup()
        assert shared.share(comm, 1 << 12) is None
        comm.Free()
        negotiator = process_sets.negotiators[0]
        fusion = negotiator._executor._fusion
        kept = fusion._pair, fusion._shared, fusion._tried
        fusion._pair, fusion._shared, fusion._tried = None, None, False
        try:
            tensors = [own(i, size) for i, size in enumerate((10, 2000, 30, 200_000))]
            hvd.grouped_allreduce_(tensors, name="buffered", op=hvd.Average)
            agree(tensors, [0, 1, 2, 3], hvd.Average)
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
    names = [f"again.{i}" for i in range(30)]
    pending = process_sets.negotiators[0]._pending
    bundled = 0
    recognised = pending._recognised

    def count(entries: list[TensorEntry], since: float) -> Bundle | None:
        nonlocal bundled
        made = recognised(entries, since)
        bundled += made is not None and len(entries) == len(names)
        return made

    def step(numbers: list[int], mine: list[int] | None = None, op: int = hvd.Sum) -> None:
        mine = numbers if mine is None else mine
        tensors = {i: own(i, 100 + i) for i in numbers}
        hvd.barrier()
        assert not reduce_by_name([names[i] for i in mine], [tensors[i] for i in mine], op)
        agree([tensors[i] for i in numbers], numbers, op)

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
        tensors = [own(i, 100 + i) for i in everything]
        early = everything if hvd.rank() else everything[:10]
        handles = {i: hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum) for i in early}
        hvd.synchronize(handles[3])
        late = [i for i in everything if i not in handles]
        for i in late:
            handles[i] = hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum)
        for handle in handles.values():
            hvd.synchronize(handle)
        agree(tensors, everything)
        tensors = [own(i, 100 + i) for i in everything]
        tensors[7] = torch.zeros(5 + hvd.rank())
        errors = reduce_by_name(names, tensors)
        assert len(errors) == 1, errors
        assert "again.7" in errors[0], errors
        agree(tensors[:7], everything[:7])
        agree(tensors[8:], everything[8:])
        again(2)
    finally:
        del pending._recognised


def check_a_name_twice_among_calls_that_come_again() -> None:
    for _ in range(4):
        tensors = [own(i, 50) for i in range(10)]
        handles = [
            hvd.allreduce_async_(each, name=f"twice.{i}", op=hvd.Sum)
            for i, each in enumerate(tensors)
        ]
        for take in (
            lambda: hvd.allreduce_async_(torch.ones(50), name="twice.4", op=hvd.Sum),
            lambda: hvd.allreduce_async(torch.ones(50), name="twice.4", op=hvd.Sum),
        ):
            raised(ValueError, take, "allreduce.twice.4 is under way already")
        for handle in handles:
            assert hvd.synchronize(handle) is tensors[handle - handles[0]]
            assert hvd.synchronize(handle) is None
        agree(tensors, list(range(10)))


def check_much_and_little_shared_memory() -> None:
    """Whichever segment two ranks go through, and however they change it on the way."""
    if hvd.size() != 2:
        return
    drawn = random.Random(1)
    sizes = [drawn.randrange(1000, 130_000) for _ in range(150)] + [300_002, 2_000_003, 262_144]
    numbers = list(range(len(sizes)))
    fusion = process_sets.negotiators[0]._executor._fusion
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
            tensors = [own(step + i, sizes[i] // 2, dtype) for i in chosen]
            if step % 2:
                hvd.grouped_allreduce_(tensors, name=f"segments.{step % 4}", op=hvd.Sum)
            else:
                assert not reduce_by_name([f"segments.{i}" for i in chosen], tensors)
            agree(tensors, numbered)
            lone = own(step, 600_001, dtype)
            hvd.allreduce_(lone, name=f"lone.{step % 2}", op=hvd.Average)
            agree([lone], [step], hvd.Average)
        assert seen == {pair._NEAR, pair._FAR}
        assert set(fusion._pair._segments) == seen
        cut = [segment._whole for segment in fusion._pair._segments.values()]
        assert all(cut), "large tensors went through no segment"
        low = torch.full((weighty,), float("nan") if hvd.rank() else 1.0)
        assert hvd.allreduce(low, name="nan", op=hvd.Min).isnan().all()
    finally:
        pair.WEIGHTY = weighty
        vars(fusion._pair).pop("_agreed", None)
