"""Horovod's DistributedOptimizer and SyncBatchNorm, against one process on the whole batch."""

from __future__ import annotations

import pytest

from torch_runs import FLAVOURS, LONG, Launches, checks, passed

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

MODULES = (
    "hvd_optimizer.py",
    "hvd_optimizer_use.py",
    "hvd_optimizer_gradients.py",
    "hvd_batch_norm.py",
)
NAMES = [name for module in MODULES for name in checks(module)]
OFTEN = [("openmpi5", 2), ("openmpi4", 4), ("mpich", 4), ("intel", 2)]
MORE = [(flavour, ranks) for flavour in FLAVOURS for ranks in (2, 3, 4)]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("hvd-optimizer"))


@pytest.mark.parametrize(
    ("flavour", "ranks"),
    [*OFTEN, *(pytest.param(*each, marks=LONG) for each in MORE if each not in OFTEN)],
)
def test_against_one_process(launches: Launches, flavour: str, ranks: int) -> None:
    done = launches.once(flavour, ranks, "hvd_training_all.py")
    for name in NAMES:
        passed(done, name)
    assert done.returncode == 0, done.stderr
