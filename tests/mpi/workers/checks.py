"""What all worker scripts share: run checks on all ranks, and expect errors."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mpi4py import MPI

Case = TypeVar("Case")
Check = Callable[[], None]
Kinds = type[Exception] | tuple[type[Exception], ...]
BOUND = 120.0  # seconds that one check may take, also on a busy machine


def run(checks: list[Check], barrier: Callable[[], object], bound: float = BOUND) -> None:
    """Run every check on every rank; rank 0 prints `ok NAME` once all ranks have passed it.

    A failure prints the traceback and aborts the world, because other ranks may be waiting.
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
        barrier()
        if MPI.COMM_WORLD.rank == 0:
            print(f"ok {check.__name__}", flush=True)


def some(cases: Sequence[Case], step: int) -> Sequence[Case]:
    """Every `step`-th of the cases: others each day (see tests/rotation.py), all where it is 1."""
    return cases[int(os.environ.get("SHANTY_TEST_DAY") or time.time() // 86400) % step :: step]


def checks_of(scope: dict[str, Any]) -> list[Check]:
    """The checks of a module, in the order of its lines."""
    return [each for name, each in scope.items() if name.startswith("check_")]


def raised(kinds: Kinds, call: Callable[[], object], *words: str) -> str:
    """The message of the error that `call` raises: it is of these kinds and contains the words."""
    try:
        call()
    except kinds as error:
        message = str(error)
    else:
        raise AssertionError("no error")
    for word in words:
        assert word in message, (word, message)
    return message


def tell(
    mistake: Check, kinds: Kinds, count: int, after: Callable[[], object] = lambda: None
) -> None:
    """Make a mistake that ends the run. A rank that sees an error calls `after`, prints
    `rank R: S s: TYPE: MESSAGE` in one line, and leaves when `count` ranks have printed theirs.
    """
    rank, begun = MPI.COMM_WORLD.rank, time.monotonic()
    try:
        mistake()
    except kinds as error:
        seconds = time.monotonic() - begun
        after()
        text = str(error).replace("\n", " | ")
        print(f"rank {rank}: {seconds:.1f} s: {type(error).__name__}: {text}", flush=True)
        folder = Path(os.environ["SHANTY_RUN_DIR"])
        (folder / f"told-{rank}").touch()
        deadline = time.monotonic() + 30
        while len(list(folder.glob("told-*"))) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        sys.exit(3)
