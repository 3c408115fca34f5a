"""Deliberate mistakes after which the run cannot go on. Arguments: the name of one of them, and
how many ranks see an error. Each of them prints `rank R: S s: TYPE: MESSAGE` in one line, and ends
when all have. Run through ../test_hvd_mistakes.py, on 3 ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from checks import raised, tell
from torch import nn

import shanty.torch as hvd

LATE = 1  # the rank that makes the mistake


def late() -> bool:
    return hvd.rank() == LATE


def wait_for(name: str) -> None:
    hvd.allreduce(torch.ones(4), name=name)


def compute() -> None:
    """For as long as the run goes on."""
    time.sleep(60)


def never_comes() -> None:
    """A rank that computes on; the others give up after HOROVOD_STALL_SHUTDOWN_TIME_SECONDS."""
    if late():
        compute()
    wait_for("late.grad")


def comes_after_the_warning() -> None:
    """A rank that comes after several warnings: nothing is lost."""
    hvd.barrier()  # or it would be late by less, since the others start at other times
    if late():
        time.sleep(4)
    total = hvd.allreduce(torch.ones(4), name="late.grad", op=hvd.Sum)
    assert torch.all(total == hvd.size())
    print(f"rank {hvd.rank()} is through", flush=True)


def never_comes_to_a_set() -> None:
    """Of a process set; the rank that is outside of it waits for all."""
    pair = hvd.add_process_set([0, LATE])
    if late():
        compute()
    if pair.included():
        hvd.allreduce(torch.ones(4), name="in.set", process_set=pair)
    wait_for("of.all")


def crossed() -> None:
    """Ranks that wait for each other, each for another name."""
    wait_for("b" if late() else "a")


def other_kind() -> None:
    """One name, and another operation on one rank: for Horovod these are two names."""
    if late():
        hvd.allgather(torch.ones(4), name="k")
    else:
        wait_for("k")


def held_back() -> None:
    """A rank that waits for one of so many that it has not come to its turn, and others elsewhere.

    The first of them is of a rank that went on without it.
    """
    if late():
        hvd.synchronize([hvd.allreduce_async(torch.ones(4)) for _ in range(129)][-1])
    else:
        hvd.barrier()


def exits() -> None:
    """A rank whose script ends early, in good order."""
    if not late():
        wait_for("grad.w")


def raises() -> None:
    """A rank whose script fails."""
    if late():
        raise ArithmeticError("deliberate")
    wait_for("grad.w")


def is_killed() -> None:
    """A rank that is killed, amid many steps."""
    begun = time.monotonic()
    while True:
        if late() and time.monotonic() - begun > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for("grad.w")


def shuts_down() -> None:
    """A rank that has had enough, and computes on alone."""
    if late():
        hvd.shutdown()
        compute()
    wait_for("grad.w")


def leaves_the_loop() -> None:
    """A rank with one batch less than the others, and no join."""
    model = nn.Linear(3, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser = hvd.DistributedOptimizer(optimiser, model.named_parameters())
    for _ in range(2 if late() else 3):
        optimiser.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimiser.step()


def misses_the_broadcast() -> None:
    """The usual first lines of a script, within `if rank == 0`."""
    if hvd.rank() == 0:
        hvd.broadcast_parameters(nn.Linear(3, 1).state_dict(), 0)


def others_have_joined() -> None:
    """A rank that leaves without joining, as the others have."""
    if not late():
        hvd.join()


def misses_the_set() -> None:
    """A rank that is no member, and thinks that it need not call."""
    if late():
        compute()
    hvd.add_process_set([0, 2])


GOES_ON = (crossed, other_kind, held_back)  # all ranks are there, and only had to be told


def again() -> None:
    """Ranks that had only to be told go on; of the others, no one is left hanging."""
    if fatal in GOES_ON:
        wait_for("again")
    else:
        raised(hvd.HorovodInternalError, lambda: wait_for("again"))


if __name__ == "__main__":
    fatal = globals()[sys.argv[1]]
    hvd.init()
    tell(fatal, hvd.HorovodInternalError, int(sys.argv[2]), again)
