"""Decides whether the ranks of a run train the same model each by itself. Pure."""

from __future__ import annotations

from typing import List, Optional

from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.messages import Report
from shanty.runtime.spec import Failure

PATIENCE = 3.0  # seconds that the other ranks may begin to train after the first one


def alone(world: MpiWorld, now: float) -> Optional[Failure]:
    """Return the failure where ranks of `world` train and none has joined another; else None.

    A rank reports its first training step (`rank/training.py`). A script that asks for its rank, or
    has other arguments in other ranks, is a sweep. Where two ranks claim the same place, each has
    started a world of its own.
    """
    size, trainings = world.expected or 0, world.trainings
    if size < 2 or world.united or len({each.rank for each in trainings}) < 2:
        return None
    if any(each.flag("asks_rank") for each in trainings):
        return None
    if len({each.whole("args") for each in trainings}) > 1:
        return None
    everyone = {each.rank for each in trainings} == set(range(size))
    if not everyone and now < world.training_since + PATIENCE:
        return None
    single = all(each.whole("as_size") == 1 for each in trainings)
    if not single and not _same_rank_twice(trainings):
        return None
    first = trainings[0]
    ranks = sorted({each.rank for each in trainings})
    size_there = first.whole("as_size")
    worlds = "rank 0 of 1" if single else f"a rank of another world of {size_there}"
    unset = first.text("unset")
    why = f"; the script looks for {unset}, which is not set here" if unset else ""
    framework = first.text("framework")
    fix = first.text("fix") if single else _START_ALL
    if unset and single:
        fix = "take the rank and the world size from RANK and WORLD_SIZE, which every MPI has here"
    return Failure(
        f"{named(ranks)} of {size} each train a model by themselves: no rank has joined another",
        f"in each of them {framework} has begun to train as {worlds}" + why,
        f"to make it one job: {fix}; if each is meant to train by itself: --alone ok",
    )


_START_ALL = "have shanty start all processes (-n), and start none in the script"


def _same_rank_twice(trainings: List[Report]) -> bool:
    """True when processes of different ranks of the run claim the same rank of a world."""
    places = [(each.whole("as_rank"), each.whole("as_size")) for each in trainings]
    holders = {place: each.rank for place, each in zip(places, trainings)}
    return any(holders[place] != each.rank for place, each in zip(places, trainings))
