"""Judges whether the ranks of a run train the same model each by itself. Pure."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from shanty.runtime.agent.mpi_world import MpiWorld
from shanty.runtime.agent.root_cause import named
from shanty.runtime.spec import Failure

PATIENCE = 3.0  # seconds that the other ranks may be behind the first one that trains


def alone(world: MpiWorld, now: float) -> Optional[Failure]:
    """What is wrong where ranks of `world` train, and none has joined another one; else None.

    A rank tells of its first training step (`rank/training.py`). A script that asks for its rank,
    or has other arguments in other ranks, is a sweep. Worlds that hold the same rank twice are
    several: each rank has started one of its own.
    """
    size, trainings = world.expected or 0, world.trainings
    if size < 2 or world.united or len({each["rank"] for each in trainings}) < 2:
        return None
    if any(each["asks_rank"] for each in trainings) or len({t["args"] for t in trainings}) > 1:
        return None
    everyone = {each["rank"] for each in trainings} == set(range(size))
    if not everyone and now < world.training_since + PATIENCE:
        return None
    single = all(each["as_size"] == 1 for each in trainings)
    if not single and not _same_rank_twice(trainings):
        return None
    first = trainings[0]
    ranks = sorted({each["rank"] for each in trainings})
    worlds = "rank 0 of 1" if single else f"a rank of another world of {first['as_size']}"
    unset = first.get("unset")
    why = f"; the script looks for {unset}, which is not set here" if unset else ""
    fix = first["fix"] if single else _START_ALL
    if unset and single:
        fix = "take the rank and the world size from RANK and WORLD_SIZE, which every MPI has here"
    return Failure(
        f"{named(ranks)} of {size} each train a model by themselves: no rank has joined another",
        f"in each of them {first['framework']} has begun to train, and takes itself for {worlds}"
        + why,
        f"to make it one job: {fix}; if each is meant to train by itself: --alone ok",
    )


_START_ALL = "have shanty start all processes (-n), and start none in the script"


def _same_rank_twice(trainings: List[Mapping[str, Any]]) -> bool:
    """True when processes of different ranks of the run say that they are the same one."""
    holders = {(each["as_rank"], each["as_size"]): each["rank"] for each in trainings}
    return any(holders[each["as_rank"], each["as_size"]] != each["rank"] for each in trainings)
