"""What a run with `--elastic` outlives, and what comes back: the one table of it.

`shanty doctor --elastic`, `--dry-run` and docs/how-to/elastic.md show it.
"""

from __future__ import annotations

from typing import NamedTuple


class Support(NamedTuple):
    """One row. name: of a place or framework. The other fields: a word or two for each column."""

    name: str
    lost_rank: str
    lost_host: str
    full_size: str
    warm: str


HEAD = ("", "lost rank", "lost host", "back to full size", "--warm")

GOES_ON, ENDS, NO = "goes on", "the run ends", "no"
_UNTRIED = "not tried yet"
_FIRST = "goes on, unless it is the first one"
_COMMITS, _SPARES = "at a commit, or by --spares", "by --spares"
_AGAIN = "from a commit, with --retries"

HERE = Support("this machine", GOES_ON, ENDS, _COMMITS, "yes")
HOSTS = Support("hosts by ssh", GOES_ON, _FIRST, _SPARES, "yes")
QUEUE = Support("hosts of a queue (Slurm)", GOES_ON, _FIRST, _SPARES, "yes")
KUBERNETES = Support("Kubernetes, by shanty's own Job", _UNTRIED, _UNTRIED, NO, NO)
IMAGE = Support("containers (--image)", GOES_ON, _FIRST, "at a commit, on one machine", NO)

PLACES = (
    HERE,
    HOSTS,
    QUEUE,
    KUBERNETES,
    IMAGE,
    Support("other MPIs than Open MPI 5", ENDS, ENDS, _AGAIN, "yes"),
    Support("a launcher line of your own", ENDS, ENDS, NO, NO),
)
FRAMEWORKS = (
    Support("hvd.elastic: torch, TensorFlow, Keras", GOES_ON, GOES_ON, "yes", "yes"),
    Support("DistributedDataParallel with elastic.ddp", GOES_ON, GOES_ON, NO, "yes"),
    Support("FSDP, ZeroRedundancyOptimizer", ENDS, ENDS, NO, "yes"),
    Support("Keras fit without hvd.elastic.run", ENDS, ENDS, NO, "yes"),
    Support("XGBoost: train and the estimators", GOES_ON, _UNTRIED, NO, "yes"),
    Support("LightGBM over several ranks", "refused", "refused", "refused", "yes"),
    Support("JAX, mpi4py", ENDS, ENDS, NO, "yes"),
)


def described(place: Support) -> str:
    """Write a row for a place as the line of a plan."""
    growth = "lost ranks stay lost"
    if place.full_size != NO:
        growth = f"lost ranks come back: {place.full_size}"
    return f"a lost rank: {place.lost_rank}; a lost host: {place.lost_host}; {growth}"
