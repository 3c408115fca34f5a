"""Thousands of training steps: memory flat, nothing left. Messages of more than 2 GiB."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_runs import FLAVOURS, LONG, checks, launch, passed, run

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        (2, 500),
        pytest.param(4, 10_000, marks=[pytest.mark.slow, LONG, pytest.mark.timeout(600)]),
    ],
)
def test_steps_leave_nothing(ranks: int, steps: int) -> None:
    done = launch(ranks, "torch_long.py", str(steps))
    passed(done, "check_steps")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@LONG
@pytest.mark.skipif(MEMORY < 16 << 30, reason="needs 16 GiB of memory")
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_large_messages(flavour: str, tmp_path: Path) -> None:
    done = run(tmp_path, flavour, 2, "torch_large.py")
    for name in checks("torch_large.py"):
        passed(done, name)
