"""Ranks that each train by themselves: what they tell, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from plans import world_of
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.separate_training import PATIENCE, alone
from shanty.runtime.messages import Report


def train(world: MpiWorld, rank: int, now: float = 5.0, **more: Any) -> None:
    report = {
        "event": "training", "rank": rank, "framework": "JAX 1", "as_rank": 0, "as_size": 1,
        "asks_rank": False, "args": 7, "fix": "share it", "host": "h",
    }  # fmt: skip
    world.report(Report({**report, **more}), now)


@pytest.mark.parametrize(
    ("trainings", "why", "fix"),
    [
        ([{}, {}], "JAX 1 has begun to train as rank 0 of 1", "share it"),
        (
            [{"unset": "SLURM_PROCID"}] * 2,
            "the script looks for SLURM_PROCID, which is not set here",
            "RANK and WORLD_SIZE",
        ),
        # A world of each rank's own
        (
            [{"as_rank": own, "as_size": 2} for own in (0, 1, 0, 1)],
            "another world of 2",
            "-n",
        ),
        # One world, sweeps, a single rank
        ([{"as_rank": 0, "as_size": 2}, {"as_rank": 1, "as_size": 2}], "", ""),
        ([{"asks_rank": True}, {}], "", ""),
        ([{"args": 1}, {"args": 2}], "", ""),
        ([{}], "", ""),
    ],
)
def test_who_trains_alone(trainings: list[dict[str, Any]], why: str, fix: str) -> None:
    """`trainings` are those of rank 0, then those of rank 1."""
    size = min(2, len(trainings))
    world = world_of(size, *"ab"[:size])
    for place, training in enumerate(trainings):
        train(world, place * size // len(trainings), **training)
    found = alone(world, 100.0)
    assert (found is not None) is bool(why)
    if found is not None:
        assert found.what.startswith("ranks 0, 1 of 2 each train a model by themselves")
        assert why in found.why
        assert fix in found.fix


def test_the_others_may_be_behind() -> None:
    world = world_of(3, *"abc")
    train(world, 0)
    assert alone(world, 5.0 + 2 * PATIENCE) is None  # one that trains alone may be meant to
    train(world, 2, 6.0)
    assert alone(world, 5.0 + PATIENCE / 2) is None
    found = alone(world, 5.0 + PATIENCE)
    assert found is not None
    assert found.what.startswith("ranks 0, 2 of 3 each")


def test_ranks_that_joined_by_mpi() -> None:
    world = world_of(2, *"ab")
    joined = {"mpi_size": 2, "library": "Open MPI v5", "path": "/o/libmpi.so", "size": 2}
    train(world, 0)
    train(world, 1)
    for rank in range(2):
        report = {"event": "joined", "rank": rank, "mpi_rank": rank, "user": "lightning", **joined}
        world.report(Report(report), 5.0)
    assert alone(world, 5.0) is not None  # it has only asked MPI for its size
    report = {"event": "joined", "rank": 1, "mpi_rank": 1, "user": "__main__", **joined}
    world.report(Report(report), 5.0)
    assert alone(world, 5.0) is None
