"""Deliberate mistakes, each of which must end in its own error on every rank. Run with
SHANTY_CHECK=1 through ../test_torch_mistakes.py.

Without arguments: those after which the group goes on, one check each. With the name of one of
the others, and how many ranks see it: that one alone; each of them prints `rank R: TYPE: MESSAGE`
in one line, and ends when all have.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import checks_of, raised, run, tell
from torch.nn.parallel import DistributedDataParallel

from shanty.torch import MismatchError

WHERE = "torch_mistakes.py:"


def differs(call: Callable[[bool], object], *words: str) -> None:
    """`call(odd)` on all ranks, odd on the last one: all get a MismatchError with these words."""
    odd = dist.get_rank() == dist.get_world_size() - 1
    raised(MismatchError, lambda: call(odd), *words)
    tensor = torch.ones(3)  # and the group goes on
    dist.all_reduce(tensor)
    assert torch.all(tensor == dist.get_world_size())


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (4,))


def check_calls_that_differ() -> None:
    """The error has the calls of all ranks, with the lines of the script that they come from."""
    dtypes = {True: torch.int32, False: torch.float32}  # of one size: MPI would mix them up
    ops = {True: dist.ReduceOp.MAX, False: dist.ReduceOp.SUM}
    world, reduce = dist.get_world_size(), dist.all_reduce
    shapes = ("all_reduce(SUM, float32, (4,))", "all_reduce(SUM, float32, (5,))", WHERE, "rank 0:")
    for call, *words in (
        (lambda odd: reduce(ones(5 if odd else 4)), *shapes),
        (lambda odd: reduce(ones(3, 2) if odd else ones(2, 3)), "(3, 2)", "(2, 3)"),
        (lambda odd: reduce(ones().to(dtypes[odd])), "int32", "float32", WHERE),
        (lambda odd: reduce(ones(), ops[odd]), "MAX", "SUM"),
        (lambda odd: dist.reduce(ones(), 0) if odd else reduce(ones()), "reduce(", "all_re"),
        (lambda odd: dist.broadcast(ones(), int(odd)), "broadcast(float32, (4,), 1)"),
        # one rank logs its loss, the others go on to the next step
        (lambda odd: dist.reduce(ones(1), 0) if odd else dist.barrier(), "reduce(", "barrier()"),
        (lambda odd: reduce(ones(4 + odd), async_op=True).wait(), "(5,)", WHERE),
        (
            lambda odd: dist.reduce_scatter(
                ones(), [ones(4 + (odd and r == 0)) for r in range(world)]
            ),
            *("reduce_scatter(SUM, float32, (5,", "reduce_scatter(SUM, float32, (4,"),
        ),
        (
            lambda odd: dist.all_gather([ones(4 + odd) for _ in range(world)], ones(4 + odd)),
            *("all_gather(float32, ((4,", "all_gather(float32, ((5,"),
        ),
    ):
        differs(call, *words)


def check_order() -> None:
    def call(odd: bool) -> None:
        first, second = (dist.barrier, lambda: dist.all_reduce(ones()))
        for each in (second, first) if odd else (first, second):
            each()

    differs(call, "barrier()", "all_reduce(", WHERE)


def check_gather_lengths() -> None:
    def call(odd: bool) -> None:
        outputs = [ones() for _ in range(dist.get_world_size())]
        dist.gather(ones(5 if odd else 4), outputs if dist.get_rank() == 0 else None)

    differs(call, "sends 5 elements to rank 0", "expects 4", "rank 1: gather(", WHERE)


def check_scatter_lengths() -> None:
    def call(odd: bool) -> None:
        inputs = [ones() for _ in range(dist.get_world_size())]
        dist.scatter(ones(3 if odd else 4), inputs if dist.get_rank() == 0 else None)

    differs(call, "sends 4 elements", "expects 3")


def check_splits() -> None:
    world = dist.get_world_size()

    def call(odd: bool) -> None:
        taken = [1] * (world - 2) + ([0, 2] if odd else [1, 1])
        dist.all_to_all_single(ones(world), ones(world), taken, [1] * world)

    differs(call, "elements to rank", "expects", "rank 0: all_to_all_single(", WHERE)


def check_even_splits_of_other_lengths() -> None:
    world = dist.get_world_size()

    def call(odd: bool) -> None:
        length = 2 * world if odd else world
        dist.all_to_all_single(ones(length), ones(length))

    differs(call, "elements to rank", "expects", WHERE)


def check_shapes_of_as_many_to_scatter() -> None:
    world = dist.get_world_size()

    def call(odd: bool) -> None:
        output = ones(3, 2) if odd else ones(2, 3)
        dist.reduce_scatter(output, [output] * world)

    differs(call, "(3, 2)", "(2, 3)", WHERE)


def check_buckets_of_ddp() -> None:
    """Models of different shapes, which DDP was told not to compare."""

    def call(odd: bool) -> None:
        model = torch.nn.Linear(3, 2 if odd else 1)
        wrapped = DistributedDataParallel(model, init_sync=False)
        wrapped(torch.ones(1, 3)).sum().backward()

    try:
        differs(call, "all_reduce(SUM")
    except RuntimeError as error:  # DDP's C++ passes the message on, under its own type
        assert "called different things" in str(error), error


def check_ddp_of_other_shapes() -> None:
    words = ("ranks 0 and 2", "parameter 0 is weight (1, 3) float32 on rank 0 and weight (2, 3)")
    differs(lambda odd: DistributedDataParallel(torch.nn.Linear(3, 2 if odd else 1)), *words)


def check_ddp_of_modules_in_another_order() -> None:
    """All shapes are the same: torch would average one layer's gradients with another's."""

    def call(odd: bool) -> None:
        names = ("b", "a") if odd else ("a", "b")
        layers = {name: torch.nn.Linear(2, 2) for name in names}
        DistributedDataParallel(torch.nn.ModuleDict(layers))

    differs(call, "parameter 0 is a.weight (2, 2) float32 on rank 0 and b.weight")


def check_ddp_without_a_layer() -> None:
    words = ("parameter 2 is", "missing")
    layer = torch.nn.Linear
    differs(
        lambda odd: DistributedDataParallel(
            torch.nn.Sequential(*(layer(2, 2) for _ in range(1 + odd)))
        ),
        *words,
    )


def skips() -> None:
    """A rank that does not come, and computes on."""
    if dist.get_rank() == 1:
        time.sleep(60)
    else:
        dist.all_reduce(ones())


def exits() -> None:
    """A rank whose script ends early, in good order."""
    if dist.get_rank() != 1:
        dist.all_reduce(ones())


def locks() -> None:
    """Ranks that wait for each other in different calls."""
    if dist.get_rank() == 1:
        dist.recv(ones(), 0)
    else:
        dist.barrier()


def comes_late() -> None:
    """A rank that comes when the others have given up."""
    if dist.get_rank() == 1:
        time.sleep(4)
    dist.all_reduce(ones())


def ddp_without_one() -> None:
    """A rank that leaves the loop one step early: nobody waits in Python but C++."""
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    for _ in range(2 if dist.get_rank() == 1 else 3):
        model(ones(1, 3)).sum().backward()


def monitored() -> None:
    """monitored_barrier without one."""
    if dist.get_rank() == 1:
        time.sleep(60)
    else:
        dist.monitored_barrier(timeout=timedelta(seconds=2))


def groups_crossed() -> None:
    """Two groups, used in another order on one rank."""
    first, second = dist.new_group(), dist.new_group()
    pair = (second, first) if dist.get_rank() == 1 else (first, second)
    for group in pair:
        dist.all_reduce(ones(), group=group)


LIMITS = {skips: 3, comes_late: 3}  # seconds, which alone end these

if __name__ == "__main__":
    fatal = globals()[sys.argv[1]] if sys.argv[1:] else None
    dist.init_process_group("mpi", timeout=timedelta(seconds=LIMITS.get(fatal, 60)))
    if fatal:
        tell(fatal, RuntimeError, int(sys.argv[2]))
    else:
        run(checks_of(dict(globals())), dist.barrier)
        dist.destroy_process_group()
