"""What the worker scripts of Horovod's API share: run checks on all ranks; expect errors."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable

import torch
from mpi4py import MPI
from torch import Tensor

import shanty.torch as hvd

Check = Callable[[], None]
Kinds = type[Exception] | tuple[type[Exception], ...]
BOUND = 30.0  # seconds that one check may take, also on a busy machine


def run(checks: list[Check], bound: float = BOUND) -> None:
    """Run every check on every rank; rank 0 prints `ok NAME` once all ranks are through it.

    A failure anywhere prints the traceback and aborts the world: the others may be waiting.
    """
    for check in checks:
        begun = time.monotonic()
        try:
            check()
            assert time.monotonic() - begun < bound, "it took too long"
        except Exception:  # noqa: BLE001 (printed, and the world ends)
            print(f"FAILED {check.__name__} on rank {MPI.COMM_WORLD.rank}", flush=True)
            traceback.print_exc()
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
        if hvd.is_initialized():
            hvd.barrier()
        if MPI.COMM_WORLD.rank == 0:
            print(f"ok {check.__name__}", flush=True)


def raised(kinds: Kinds, call: Callable[[], object]) -> str:
    """The message of the error that `call` ends with; it must be one of these kinds."""
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError("no error")


REFUSED = (ValueError, hvd.HorovodInternalError)
"""What Horovod raises for an argument that is wrong by itself: the one or the other."""


def ones(*shape: int) -> Tensor:
    return torch.ones(shape or (4,))


def goes_on() -> None:
    total = hvd.allreduce(ones(3), op=hvd.Sum, name="goes.on")
    assert torch.all(total == hvd.size()), total


def differs(call: Callable[[bool], object], *words: str) -> None:
    """`call(odd)` on all ranks, odd on the last one: one and the same error on all of them, with
    these words. Then the call by the same name goes through, as it should have been."""
    odd = hvd.rank() == hvd.size() - 1
    error = raised(hvd.HorovodInternalError, lambda: call(odd))
    for word in words:
        assert word in error, (word, error)
    assert set(hvd.allgather_object(error)) == {error}
    call(False)
    goes_on()


def refused(call: Callable[[], object], *words: str, kinds: Kinds = REFUSED) -> None:
    """`call` is refused on every rank, in words that say why; and on it goes."""
    error = raised(kinds, call)
    for word in words:
        assert word in error, (word, error)
    goes_on()
