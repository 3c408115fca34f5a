"""DistributedOptimizer, option by option, against one process on the whole batch.

See run_checks.py.
"""

from __future__ import annotations

import warnings

import torch
from checks import raised
from torch import Tensor
from training import (
    STEPS,
    agree,
    alone,
    batch,
    distributed,
    everything,
    gradients,
    mean_square,
    network,
    part,
    steps,
    together,
)

import shanty.torch as hvd


def check_average() -> None:
    agree(together(), alone())


def check_without_names() -> None:
    agree(together(named_parameters=None), alone())


def check_sum() -> None:
    model = network()
    optimizer = distributed(model, op=hvd.Sum)
    share = hvd.size()
    steps(model, optimizer, loss=lambda *given: mean_square(*given) / share)
    agree(model, alone())


def check_other_operations() -> None:
    for op, combine in ((hvd.Min, torch.amin), (hvd.Max, torch.amax), (hvd.Product, torch.prod)):
        model = network()
        optimizer = distributed(model, op=op)
        x, y = batch(0)
        mean_square(model, part(x), part(y)).backward()
        optimizer.synchronize()
        for parameter, each in zip(model.parameters(), zip(*gradients(), strict=True), strict=True):
            want = combine(torch.stack(each), dim=0)
            torch.testing.assert_close(parameter.grad, want, rtol=1e-5, atol=1e-7)


def check_predivide() -> None:
    for factor in (2.0, 0.5, float(hvd.size())):
        agree(together(gradient_predivide_factor=factor), alone())
        agree(together(gradient_predivide_factor=factor, groups=2), alone())


def check_compression() -> None:
    agree(together(compression=hvd.Compression.fp16), alone(), 5e-3)
    agree(together(compression=hvd.Compression.fp16, groups=2), alone(), 5e-3)
    agree(together(compression=hvd.Compression.none), alone())


class BFloat16:
    """A compressor of one's own."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        return tensor.bfloat16(), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        assert tensor.dtype is torch.bfloat16
        return tensor.to(ctx)


def check_own_compression() -> None:
    agree(together(compression=BFloat16), alone(), 5e-2)


def check_bfloat16_model() -> None:
    agree(together(model=network().bfloat16()), alone(model=network().bfloat16()), 5e-2)
    model = together(model=network().bfloat16())
    assert all(each.grad.dtype is torch.bfloat16 for each in model.parameters())


def check_backward_passes() -> None:
    for groups in (None, 2):
        model = network()
        optimizer = distributed(model, backward_passes_per_step=2, groups=groups)
        assert optimizer.backward_passes_per_step == 2
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = map(part, batch(step))
            for rows in torch.arange(len(x)).chunk(2):
                (mean_square(model, x[rows], y[rows]) / 2).backward()
            optimizer.step()
        agree(model, alone())


def check_fewer_passes() -> None:
    """step() before all passes were made reduces what is there."""
    agree(together(backward_passes_per_step=3), alone())
    agree(together(backward_passes_per_step=3, groups=2), alone())


def check_too_many_passes() -> None:
    for groups in (None, 1):
        model = network()
        optimizer = distributed(model, groups=groups)
        x, y = map(part, batch(0))
        mean_square(model, x, y).backward()
        again = mean_square(model, x, y)
        raised(AssertionError, again.backward, "backward_passes_per_step")
        optimizer.step()
        optimizer.set_backward_passes_per_step(2)
        optimizer.zero_grad()
        for _ in range(2):
            mean_square(model, x, y).backward()
        optimizer.step()


def check_groups() -> None:
    for groups in (1, 2, 4, 100):
        agree(together(groups=groups), alone())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        agree(together(num_groups=2), alone())
    assert any(each.category is DeprecationWarning for each in seen)
    model = network()
    layers = [list(model[0].parameters()), list(model[4].parameters())]
    agree(together(model=model, groups=layers), alone())


def check_process_sets() -> None:
    half = hvd.size() // 2
    sets = [hvd.ProcessSet(range(half)), hvd.ProcessSet(range(half, hvd.size()))]
    for each in sets:
        hvd.add_process_set(each)
    mine = sets[hvd.rank() >= half]
    for groups in (None, 2):
        model = network()
        optimizer = distributed(model, process_set=mine, groups=groups)
        steps(model, optimizer, lambda whole: part(whole, mine.rank(), mine.size()))
        agree(model, alone())
    only = network()  # only of the first set: the others make their own steps
    optimizer = distributed(only, process_set=sets[0])
    if sets[0].included():
        steps(only, optimizer, lambda whole: part(whole, sets[0].rank(), half))
    else:
        steps(only, optimizer, everything)
    agree(only, alone())
    hvd.barrier()
    for each in sets:
        hvd.remove_process_set(each)


def check_steps_after_a_join() -> None:
    """Ranks with less data have made fewer steps; what they compare at some steps must not meet."""
    model = network()
    optimizer = distributed(model)
    for more in (0, 8):
        steps(model, optimizer, numbers=range(1 + more + hvd.rank()))
        hvd.join()
