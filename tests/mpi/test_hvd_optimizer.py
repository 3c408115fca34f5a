"""Horovod's DistributedOptimizer and SyncBatchNorm, against one process on the whole batch."""

from __future__ import annotations

import pytest

from launches import FLAVOURS, LONG, Launches

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

MODULES = ("hvd_optimizer", "hvd_optimizer_use", "hvd_optimizer_gradients", "hvd_batch_norm")
OFTEN = [("openmpi5", 2), ("openmpi4", 4), ("mpich", 4), ("intel", 2)]
MORE = [(flavour, ranks) for flavour in FLAVOURS for ranks in (2, 3, 4)]


@pytest.mark.parametrize(
    ("flavour", "ranks"),
    [*OFTEN, *(pytest.param(*each, marks=LONG) for each in MORE if each not in OFTEN)],
)
def test_against_one_process(launches: Launches, flavour: str, ranks: int) -> None:
    launches.check(flavour, ranks, "torch", *MODULES)
