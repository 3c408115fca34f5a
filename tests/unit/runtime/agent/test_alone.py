"""Ranks that each train by themselves: what they tell, and what is made of it."""

from __future__ import annotations

from typing import Any

from plans import MPI
from shanty.runtime.agent.alone import PATIENCE, alone
from shanty.runtime.agent.mpi_world import MpiWorld


def started(size: int) -> MpiWorld:
    world = MpiWorld(size, MPI)
    for rank in range(size):
        world.report({"event": "started", "rank": rank, "size": size, "host": "h"}, 1.0)
    return world


def train(world: MpiWorld, rank: int, now: float = 5.0, **more: Any) -> None:
    report = {
        "event": "training", "rank": rank, "framework": "JAX 1", "as_rank": 0, "as_size": 1,
        "asks_rank": False, "args": 7, "fix": "share it", "host": "h",
    }  # fmt: skip
    world.report({**report, **more}, now)


def test_all_ranks_train_as_the_only_one() -> None:
    world = started(2)
    train(world, 0)
    train(world, 1)
    found = alone(world, 5.0)
    assert found is not None
    assert found.what.startswith("ranks 0, 1 of 2 each train a model by themselves")
    assert "JAX 1" in found.why
    assert "rank 0 of 1" in found.why
    assert "share it" in found.fix


def test_a_variable_that_is_not_set_is_named() -> None:
    world = started(2)
    train(world, 0, unset="SLURM_PROCID")
    train(world, 1, unset="SLURM_PROCID")
    found = alone(world, 5.0)
    assert found is not None
    assert "the script looks for SLURM_PROCID, which is not set here" in found.why
    assert "RANK and WORLD_SIZE" in found.fix


def test_the_others_may_be_behind() -> None:
    world = started(3)
    train(world, 0)
    assert alone(world, 5.0 + 2 * PATIENCE) is None  # one that trains alone may be meant to
    train(world, 2, 6.0)
    assert alone(world, 5.0 + PATIENCE / 2) is None
    found = alone(world, 5.0 + PATIENCE)
    assert found is not None
    assert found.what.startswith("ranks 0, 2 of 3 each")


def test_a_world_of_several() -> None:
    world = started(2)
    train(world, 0, as_rank=0, as_size=2)
    train(world, 1, as_rank=1, as_size=2)
    assert alone(world, 100.0) is None


def test_a_world_for_each_rank() -> None:
    world = started(2)
    for rank in range(2):
        for own in range(2):
            train(world, rank, as_rank=own, as_size=2)
    found = alone(world, 5.0)
    assert found is not None
    assert "another world of 2" in found.why
    assert "-n" in found.fix


def test_ranks_that_joined_by_mpi() -> None:
    world = started(2)
    joined = {"mpi_size": 2, "library": "Open MPI v5", "path": "/o/libmpi.so", "size": 2}
    train(world, 0)
    train(world, 1)
    for rank in range(2):
        report = {"event": "joined", "rank": rank, "mpi_rank": rank, "user": "lightning", **joined}
        world.report(report, 5.0)
    assert alone(world, 5.0) is not None  # it has only asked MPI for its size
    report = {"event": "joined", "rank": 1, "mpi_rank": 1, "user": "__main__", **joined}
    world.report(report, 5.0)
    assert alone(world, 5.0) is None


def test_a_sweep() -> None:
    world = started(2)
    train(world, 0, asks_rank=True)
    train(world, 1)
    assert alone(world, 9.0) is None
    world = started(2)
    train(world, 0, args=1)
    train(world, 1, args=2)
    assert alone(world, 9.0) is None


def test_a_single_rank() -> None:
    world = started(1)
    train(world, 0)
    assert alone(world, 9.0) is None
