"""Deliberate mistakes, each of which must end in its own error on every rank, after which the
ranks go on. Run with HOROVOD_DYNAMIC_PROCESS_SETS=1 on 3 ranks, through ../test_hvd_mistakes.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import torch
from hvd_harness import REFUSED, differs, goes_on, ones, raised, refused, run
from torch import nn

import shanty.torch as hvd

# ------------------------------------------------------------------- the ranks disagree


def check_shape() -> None:
    words = ("grad.w", "(4)", "(5)", "rank")
    differs(lambda odd: hvd.allreduce(ones(5 if odd else 4), name="grad.w"), *words)


def check_shape_of_as_many() -> None:
    differs(lambda odd: hvd.allreduce(ones(3, 2) if odd else ones(2, 3), name="s"), "3, 2", "2, 3")


def check_dimensions() -> None:
    differs(lambda odd: hvd.allreduce(ones(1, 4) if odd else ones(4), name="d"), "(1, 4)", "(4)")


def check_dtype() -> None:
    dtypes = {True: torch.int32, False: torch.float32}  # of one size: MPI would mix them up
    differs(lambda odd: hvd.allreduce(ones().to(dtypes[odd]), name="t"), "int32", "float32")


def check_operation() -> None:
    differs(lambda odd: hvd.allreduce(ones(), name="o", op=hvd.Max if odd else hvd.Sum), "MAX")


def check_average_or_sum() -> None:
    ops = {True: hvd.Average, False: hvd.Sum}
    differs(lambda odd: hvd.allreduce(ones(), name="o", op=ops[odd]), "AVERAGE", "SUM")


def check_prescale() -> None:
    differs(lambda odd: hvd.allreduce(ones(), name="p", prescale_factor=1 + odd), "prescale")


def check_postscale() -> None:
    differs(lambda odd: hvd.allreduce(ones(), name="p", postscale_factor=1 + odd), "postscale")


def check_root() -> None:
    differs(lambda odd: hvd.broadcast(ones(), int(odd), name="b"), "root 0", "root 1", ".b")


def check_shape_of_broadcast() -> None:
    differs(lambda odd: hvd.broadcast(ones(5 if odd else 4), 0, name="b"), "(4)", "(5)")


def check_number_in_group() -> None:
    def call(odd: bool) -> None:
        hvd.grouped_allreduce([ones()] * (3 if odd else 2), name="g")

    differs(call, "grouped", ".g")


def check_shape_in_group() -> None:
    def call(odd: bool) -> None:
        hvd.grouped_allreduce([ones(), ones(5 if odd else 4)], name="g")

    differs(call, "(5)", "(4)")


def check_grouped_or_not() -> None:
    def call(odd: bool) -> None:
        if odd:
            hvd.grouped_allreduce([ones()], name="g")
        else:
            hvd.allreduce(ones(), name="g")

    differs(call, "grouped")


def check_trailing_dimensions_of_allgather() -> None:
    differs(lambda odd: hvd.allgather(ones(2, 4 if odd else 3), name="a"), "4", "3", ".a")


def check_dimensions_of_allgather() -> None:
    differs(lambda odd: hvd.allgather(ones(2, 3, 1) if odd else ones(2, 3), name="a"), "3, 1")


def check_trailing_dimensions_of_alltoall() -> None:
    rows = hvd.size()
    differs(lambda odd: hvd.alltoall(ones(rows, 4 if odd else 3), name="a"), "4", "3", ".a")


def check_shape_of_reducescatter() -> None:
    rows = hvd.size()
    differs(lambda odd: hvd.reducescatter(ones(rows + odd, 2), name="r"), "(3, 2)", "(4, 2)")


def check_asynchronous() -> None:
    def call(odd: bool) -> None:
        handles = [hvd.allreduce_async(ones(4 + (odd and n == 1)), name=f"n{n}") for n in range(3)]
        for handle in (handles[0], handles[2]):
            hvd.synchronize(handle)  # the others are not harmed
        hvd.synchronize(handles[1])

    differs(call, "n1", "(5)")


def check_model_of_other_shape() -> None:
    """Inside the optimizer: the step says which parameter."""
    odd = hvd.rank() == hvd.size() - 1
    model = nn.Linear(3, 2 if odd else 1, bias=False)
    optimiser = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    model(ones(1, 3)).sum().backward()
    error = raised(hvd.HorovodInternalError, optimiser.step)
    assert "weight" in error, error
    assert "(2, 3)" in error, error
    goes_on()


def two_layers(odd: bool) -> nn.Sequential:
    """The same two layers on all ranks, in another order where `odd`."""
    torch.manual_seed(1)
    layers = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    return nn.Sequential(*(reversed(layers) if odd else layers))


def check_unnamed_parameters_in_another_order() -> None:
    model = two_layers(hvd.rank() == 1)
    optimiser = hvd.DistributedOptimizer(sgd(model))
    model(ones(1, 2)).sum().backward()
    error = raised(ValueError, optimiser.step)
    assert "ranks 0 and 1 have the same parameters in another order" in error, error
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
        assert "since step 8 or earlier, ranks 0 and 1 have different optimizer opt" in told[0], (
            told
        )
        assert "(lr is 0.1 and 0.01)" in told[0], told


def check_parameters_of_other_shape() -> None:
    def call(odd: bool) -> None:
        hvd.broadcast_parameters({"w": ones(2 + odd)}, root_rank=0)

    differs(call, ".w", "(3)", "(2)")


# --------------------------------------------------------------- wrong by themselves


def check_duplicate_name() -> None:
    """Each rank in turn submits a name that is still under way; the first keeps its place."""
    for turn in range(hvd.size()):
        handle = None
        if hvd.rank() == turn:
            handle = hvd.allreduce_async(ones(), name="twice", op=hvd.Sum)
            error = raised(REFUSED, lambda: hvd.allreduce_async(ones(), name="twice", op=hvd.Sum))
            assert "twice" in error, error
        hvd.barrier()
        if handle is None:
            handle = hvd.allreduce_async(ones(), name="twice", op=hvd.Sum)
        assert torch.all(hvd.synchronize(handle) == hvd.size())
    goes_on()


def check_splits_that_do_not_add_up() -> None:
    splits = torch.tensor([2] * hvd.size())
    refused(lambda: hvd.alltoall(ones(hvd.size()), splits=splits), "split")


def check_too_many_splits() -> None:
    splits = torch.tensor([1] * (hvd.size() + 1))
    refused(lambda: hvd.alltoall(ones(hvd.size() + 1), splits=splits), "split")


def check_negative_splits() -> None:
    splits = torch.tensor([-1, 2] + [1] * (hvd.size() - 2))
    refused(lambda: hvd.alltoall(ones(hvd.size()), splits=splits), "split")


def check_rows_that_do_not_divide() -> None:
    refused(lambda: hvd.alltoall(ones(hvd.size() + 1)), "split")


def check_broadcast_from_nobody() -> None:
    for root in (hvd.size(), -1):
        refused(lambda root=root: hvd.broadcast(ones(), root), str(root))  # type: ignore[misc]


def check_reducescatter_of_a_number() -> None:
    refused(lambda: hvd.reducescatter(torch.tensor(1.0)), "reducescatter")


def check_allgather_and_alltoall_of_a_number() -> None:
    for call in (hvd.allgather, hvd.alltoall):
        refused(lambda call=call: call(torch.tensor(1.0)))  # type: ignore[misc]


def check_operation_not_for_this_dtype() -> None:
    kinds = (*REFUSED, NotImplementedError)
    number = torch.ones(2, dtype=torch.complex64)
    refused(lambda: hvd.allreduce(number, op=hvd.Max), "complex64", kinds=kinds)


def check_operation_of_reducescatter() -> None:
    kinds = (*REFUSED, NotImplementedError)
    refused(lambda: hvd.reducescatter(ones(hvd.size()), op=hvd.Adasum), kinds=kinds)


def check_average_and_op() -> None:
    refused(lambda: hvd.allreduce(ones(), average=True, op=hvd.Sum), "op")


def check_unknown_handle() -> None:
    """As in Horovod: nothing to wait for, and nothing that could be asked about."""
    assert hvd.synchronize(10**9) is None
    refused(lambda: hvd.poll(10**9), str(10**9))
    done = hvd.allreduce_async(ones())
    hvd.synchronize(done)
    assert hvd.synchronize(done) is None


def check_parameters_that_are_none() -> None:
    refused(lambda: hvd.broadcast_parameters("w", 0), "str")


# --------------------------------------------------------------------- process sets


def check_set_with_a_rank_that_does_not_exist() -> None:
    for ranks in ([0, 99], [-1, 0]):
        refused(lambda r=ranks: hvd.add_process_set(r), str(max(ranks, key=abs)))  # type: ignore[misc]


def check_duplicate_set() -> None:
    pair = hvd.add_process_set([0, 1])
    refused(lambda: hvd.add_process_set([1, 0]), "0, 1")
    refused(lambda: hvd.add_process_set(range(hvd.size())))
    assert hvd.remove_process_set(pair)


def check_other_sets() -> None:
    """The ranks do not agree on the set: all of them hear of it."""
    odd = hvd.rank() == hvd.size() - 1
    refused(lambda: hvd.add_process_set([0, 2] if odd else [0, 1]))


def check_call_from_outside_of_the_set() -> None:
    pair = hvd.add_process_set([0, 1])
    if hvd.rank() not in (0, 1):
        error = raised(REFUSED, lambda: hvd.allreduce(ones(), process_set=pair))
        assert str(hvd.rank()) in error, error
    goes_on()
    assert hvd.remove_process_set(pair)


def check_broadcast_from_outside_of_the_set() -> None:
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        raised(REFUSED, lambda: hvd.broadcast(ones(), 2, process_set=pair))
    goes_on()
    assert hvd.remove_process_set(pair)


def check_set_that_was_removed() -> None:
    pair = hvd.add_process_set([0, 1])
    assert hvd.remove_process_set(pair)
    refused(lambda: hvd.allreduce(ones(), process_set=pair), kinds=(*REFUSED, TypeError))


def check_set_that_was_never_added() -> None:
    refused(lambda: hvd.barrier(process_set=hvd.ProcessSet([0, 1])), kinds=(*REFUSED, TypeError))


# ------------------------------------------------------------------------ optimizers


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def check_duplicate_parameter_names() -> None:
    model = nn.Linear(3, 1)
    named = [("same", each) for each in model.parameters()]
    refused(lambda: hvd.DistributedOptimizer(sgd(model), named), "same", kinds=ValueError)


def check_missing_parameter_names() -> None:
    model = nn.Linear(3, 1)
    named = list(model.named_parameters())[:1]
    refused(lambda: hvd.DistributedOptimizer(sgd(model), named), "named", kinds=ValueError)


def check_parameters_without_names() -> None:
    model = nn.Linear(3, 1)
    named = list(model.parameters())
    refused(
        lambda: hvd.DistributedOptimizer(sgd(model), named), "named_parameters", kinds=ValueError
    )


def check_backward_too_often() -> None:
    model = nn.Linear(3, 1)
    optimiser = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    model(ones(1, 3)).sum().backward()
    again = model(ones(1, 3)).sum()
    error = raised(AssertionError, again.backward)
    assert "backward_passes_per_step" in error, error
    optimiser.step()
    goes_on()


def check_zero_grad_before_step() -> None:
    model = nn.Linear(3, 1)
    optimiser = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    model(ones(1, 3)).sum().backward()
    assert "zero_grad" in raised(AssertionError, optimiser.zero_grad)
    optimiser.step()
    optimiser.zero_grad()
    goes_on()


def check_passes_of_none() -> None:
    model = nn.Linear(3, 1)
    words = "backward_passes_per_step"
    refused(lambda: hvd.DistributedOptimizer(sgd(model), backward_passes_per_step=0), words)


def check_predivide_of_a_sum() -> None:
    optimiser = sgd(nn.Linear(3, 1))

    def call() -> None:
        hvd.DistributedOptimizer(optimiser, gradient_predivide_factor=2.0, op=hvd.Sum)

    refused(call, "gradient_predivide_factor", kinds=ValueError)


def check_state_of_lbfgs() -> None:
    optimiser = torch.optim.LBFGS(nn.Linear(3, 1).parameters())
    refused(lambda: hvd.broadcast_optimizer_state(optimiser, 0), "LBFGS", kinds=ValueError)


# ------------------------------------------------------------------------------ join


def check_what_goes_on_while_a_rank_has_joined() -> None:
    """Allreduces. What else the others ask for is an error on all of them, and they may go on."""
    last = hvd.size() - 1
    for turn in range(2):  # they may be known from before
        if hvd.rank() != last:
            rows = ones(hvd.size(), 2)
            calls: list[Callable[[], object]] = [
                lambda: hvd.allgather(ones(), name="j"),
                lambda: hvd.broadcast(ones(), 0, name="j"),
                lambda rows=rows: hvd.alltoall(rows, name="j"),
                lambda rows=rows: hvd.reducescatter(rows, name="j"),
                lambda: hvd.grouped_allgather([ones(), ones()], name="j"),
            ]
            for call in calls:
                error = raised(hvd.HorovodInternalError, call)
                assert "join" in error, error
                assert ".j" in error, error
                assert str(last) in error, error
                assert "SHANTY_JOIN_ALL=1" in error, error
            assert torch.all(hvd.allreduce(ones(), op=hvd.Sum) == last)
        hvd.join()
        goes_on()
        if turn == 0:
            hvd.allgather(ones(), name="j")
            hvd.broadcast(ones(), 0, name="j")


def check_broadcast_from_a_rank_that_has_joined() -> None:
    """With SHANTY_JOIN_ALL. It has nothing to send; the others hear of it, and may go on."""
    hvd.shutdown()
    os.environ["SHANTY_JOIN_ALL"] = "1"
    hvd.init()
    last = hvd.size() - 1
    if hvd.rank() != last:
        error = raised(hvd.HorovodInternalError, lambda: hvd.broadcast(ones(), last, name="b"))
        assert "join" in error, error
        assert ".b" in error, error
        assert torch.all(hvd.broadcast(ones(), 0, name="b") == 1)
        assert torch.all(hvd.allreduce(ones(), op=hvd.Sum) == last)
    hvd.join()
    goes_on()
    hvd.shutdown()
    del os.environ["SHANTY_JOIN_ALL"]
    hvd.init()


def check_some_ranks_only_would_take_part() -> None:
    """SHANTY_JOIN_ALL on one rank: all ranks have the same error, and none waits for ever."""
    first = hvd.rank() == 0
    hvd.shutdown()
    if first:
        os.environ["SHANTY_JOIN_ALL"] = "1"
    hvd.init()
    if hvd.rank() != hvd.size() - 1:
        assert "join" in raised(hvd.HorovodInternalError, lambda: hvd.allgather(ones()))
    hvd.join()
    goes_on()
    hvd.shutdown()
    os.environ.pop("SHANTY_JOIN_ALL", None)
    hvd.init()


# ------------------------------------------------------------------- kinds of errors


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


def check_adasum_of_reducescatter() -> None:
    for call in (hvd.reducescatter, hvd.reducescatter_async):
        refused(lambda c=call: c(ones(3), op=hvd.Adasum), "Adasum", kinds=NotImplementedError)
    both = [ones(3), ones(6)]
    refused(lambda: hvd.grouped_reducescatter(both, op=hvd.Adasum), kinds=NotImplementedError)


# ------------------------------------------------------------------- before and after


def check_before_init() -> None:
    """What is asked for before `init`, or after `shutdown`, names init."""
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank):
        assert "init" in raised(ValueError, question)
    model = nn.Linear(3, 1)
    calls: list[Callable[[], object]] = [
        lambda: hvd.allreduce(ones()),
        lambda: hvd.broadcast_(ones(), 0),
        lambda: hvd.alltoall(ones()),
        lambda: hvd.grouped_allgather([ones()]),
        lambda: hvd.broadcast_object(1),
        lambda: hvd.broadcast_parameters(model.state_dict(), 0),
        lambda: hvd.add_process_set([0]),
        hvd.barrier,
        hvd.join,
    ]
    for call in calls:
        assert "init" in raised(REFUSED, call)
    assert not hvd.is_initialized()


def check_after_shutdown() -> None:
    hvd.shutdown()
    check_before_init()
    hvd.shutdown()  # once more does no harm
    hvd.init()
    goes_on()


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run([check_before_init])
    hvd.init()
    run([each for each in CHECKS if each is not check_before_init])
    hvd.shutdown()
