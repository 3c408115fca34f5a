"""Thousands of steps with Horovod's optimizer: memory flat, nothing left."""

from __future__ import annotations

import pytest

from torch_runs import LONG, checks, launch, passed

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        (2, 500),
        pytest.param(4, 10_000, marks=[pytest.mark.slow, LONG, pytest.mark.timeout(600)]),
    ],
)
def test_steps_leave_nothing(ranks: int, steps: int) -> None:
    # few names are remembered, so that the others must be forgotten
    done = launch(ranks, "hvd_long.py", str(steps), HOROVOD_CACHE_CAPACITY="16")
    for name in checks("hvd_long.py"):
        passed(done, name)
    assert done.returncode == 0, done.stderr
