"""What the worker scripts share: run the named checks on all ranks, stop the world at a failure."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import torch.distributed as dist
from mpi4py import MPI

Check = Callable[[], None]


def run(checks: list[Check]) -> None:
    """Run every check on every rank; rank 0 prints `ok NAME` once all ranks are through it.

    A failure anywhere prints the traceback and aborts the world: the others may be waiting.
    """
    for check in checks:
        try:
            check()
        except Exception:  # noqa: BLE001 (printed, and the world ends)
            print(f"FAILED {check.__name__} on rank {dist.get_rank()}", flush=True)
            traceback.print_exc()
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"ok {check.__name__}", flush=True)
