"""Deliberate mistakes that only PyTorch's users can make: with handles, models and optimizers. Run
with mistakes.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from checks import raised
from framework import REFUSED, differs, goes_on, ones
from torch import nn

import shanty.torch as hvd


def check_asynchronous() -> None:
    def call(odd: bool) -> None:
        handles = [hvd.allreduce_async(ones(4 + (odd and n == 1)), name=f"n{n}") for n in range(3)]
        for handle in (handles[0], handles[2]):
            hvd.synchronize(handle)  # the others are not harmed
        hvd.synchronize(handles[1])

    differs(call, "n1", "(5)")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def two_layers(odd: bool) -> nn.Sequential:
    """The same two layers on all ranks, in another order where `odd`."""
    torch.manual_seed(1)
    layers = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    return nn.Sequential(*(reversed(layers) if odd else layers))


def check_unnamed_parameters_in_another_order() -> None:
    model = two_layers(hvd.rank() == 1)
    optimiser = hvd.DistributedOptimizer(sgd(model))
    model(ones(1, 2)).sum().backward()
    raised(ValueError, optimiser.step, "ranks 0 and 1 have the same parameters in another order")
    error = raised(ValueError, lambda: hvd.broadcast_optimizer_state(sgd(model), root_rank=0))
    assert "ranks [1]" in error, error
    assert hvd.rank() != 1 or "in another order" in error, error
    goes_on()


def first_step(model: nn.Module, rate: float) -> list[str]:
    """The warnings of a first step."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        optimiser = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), rate), model.named_parameters()
        )
        for _ in range(2):
            model(ones(1, 2)).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
    return [str(each.message) for each in found if each.category is RuntimeWarning]


def check_parameters_that_were_not_broadcast() -> None:
    torch.manual_seed(hvd.rank())
    found = first_step(nn.Linear(2, 2), 0.1)
    assert len(found) == (hvd.rank() == 0), found
    if found:
        assert "ranks 0 and 1 start from different parameters (bias and 1 more)" in found[0], found
        assert "hvd.broadcast_parameters(" in found[0], found


def check_options_that_differ() -> None:
    torch.manual_seed(1)
    model = nn.Linear(2, 2)
    assert not first_step(model, 0.1)
    found = first_step(model, 0.1 * (1 + hvd.rank()))
    assert len(found) == (hvd.rank() == 0), found
    assert not found or "different optimizer options (lr is 0.1 and 0.2)" in found[0], found


def check_options_that_differ_later() -> None:
    """As by a scheduler that is given each rank's own loss; one warning, on one rank."""
    torch.manual_seed(1)
    model = nn.Linear(2, 2)
    optimiser = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters()
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for step in range(1, 20):
            model(ones(1, 2)).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            if step == 5 and hvd.rank() == 1:
                optimiser.param_groups[0]["lr"] = 0.01
    told = [str(each.message) for each in found if each.category is RuntimeWarning]
    assert len(told) == (hvd.rank() == 0), told
    if told:
        words = "since step 8 or earlier, ranks 0 and 1 have different optimizer options"
        assert words in told[0], told
        assert "(lr is 0.1 and 0.01)" in told[0], told


def check_duplicate_name() -> None:
    """Each rank in turn submits a name that is still under way; the first keeps its place."""
    for turn in range(hvd.size()):
        handle = None
        if hvd.rank() == turn:
            handle = hvd.allreduce_async(ones(), name="twice", op=hvd.Sum)
            raised(REFUSED, lambda: hvd.allreduce_async(ones(), name="twice", op=hvd.Sum), "twice")
        hvd.barrier()
        if handle is None:
            handle = hvd.allreduce_async(ones(), name="twice", op=hvd.Sum)
        assert torch.all(hvd.synchronize(handle) == hvd.size())
    goes_on()


def check_wrong_arguments_are_either_of_horovods_errors() -> None:
    """Horovod has a ValueError for some and its own error for others, by where it looks."""
    scalar = torch.tensor(1.0)
    calls: list[Callable[[], object]] = [
        lambda: hvd.reducescatter(scalar),
        lambda: hvd.grouped_reducescatter([scalar]),
        lambda: hvd.allgather(scalar),
        lambda: hvd.alltoall(scalar),
        lambda: hvd.alltoall(ones(4), splits=[4]),
        lambda: hvd.alltoall(ones(4), splits=torch.ones(3)),
        lambda: hvd.alltoall(ones(2), splits=[1, 1, 1]),
        lambda: hvd.broadcast(ones(), 77),
        lambda: hvd.reducescatter(ones(3), op=hvd.Min),
        lambda: hvd.allreduce(ones(), process_set=hvd.ProcessSet([0])),
        lambda: hvd.poll(1 << 60),
    ]
    for call in calls:
        for kind in (ValueError, hvd.HorovodInternalError, RuntimeError):
            raised(kind, call)
    goes_on()
