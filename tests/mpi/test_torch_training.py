"""What people train with, against one process; saved, and resumed on another number of ranks."""

from __future__ import annotations

import pytest

import runs
from launches import LONG, Launches, checks, passed

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

NAMES = checks("torch_training.py")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=LONG)])
def test_training(launches: Launches, ranks: int, name: str) -> None:
    folder = launches.scratch / f"saved-{ranks}"
    folder.mkdir(exist_ok=True)
    done = launches.once("openmpi5", ranks, "torch_training.py", str(folder))
    passed(done, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.sampled
def test_resume_on_another_number_of_ranks(launches: Launches) -> None:
    folder = launches.scratch / "saved-2"
    folder.mkdir(exist_ok=True)
    done = launches.once("openmpi5", 2, "torch_training.py", str(folder))
    passed(done, "check_checkpoint")
    for ranks in (1, 3) if runs.LONG else (3,):
        resumed = launches.once("openmpi5", ranks, "torch_training.py", str(folder), "check_resume")
        passed(resumed, "check_resume")
