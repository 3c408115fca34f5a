"""LightGBM over MPI: one model on all ranks, that of LightGBM's own network, and its mistakes."""

from __future__ import annotations

import re

import pytest

from launches import WORKERS, Launches
from runs import Shanty

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.mpi
NETWORK = "lgb_network.py"


@pytest.mark.sampled(2)
def test_training_and_what_ranks_must_have_alike(launches: Launches, flavour: str) -> None:
    folder = launches.scratch / flavour
    folder.mkdir()
    launches.check(flavour, 3, "mpi", "lgb_training", "lgb_alike", arguments=[str(folder)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_model_is_that_of_lightgbm_s_own_network(
    launches: Launches, flavour: str, ranks: int
) -> None:
    found = []
    for how in ("data", "machines"):
        done = launches.once(flavour, ranks, NETWORK, how)
        assert done.returncode == 0, done.stderr
        found += re.findall(r'"digest": "(\w+)"', done.stdout)
    assert len(found) == 2 * ranks
    assert len(set(found)) == 1


@pytest.mark.sampled
def test_a_rank_that_fails_in_the_middle(shanty: Shanty, flavour: str) -> None:
    words = ("run", "--mpi", flavour, "-n", "2", "--oversubscribe", WORKERS / NETWORK, "dies")
    done = shanty(*words, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1" in done.stderr
    assert "a fault of this rank" in done.stderr  # after no two hours, as with sockets
