"""The queues of this host: where a run waits for its hosts, its queue knows how it stands."""

from __future__ import annotations

from functools import cache
from typing import Optional

from shanty.runtime import site
from shanty.runtime.queued_runs import QueuedRuns
from shanty.runtime.rundir import RunDir
from shanty.runtime.site import Site


def queue_of(run: RunDir) -> Optional[QueuedRuns]:
    """The queue that gives a run of this host its own; None for all other runs."""
    make = _QUEUES.get((site.read(run) or Site()).target)
    return None if make is None else make()


@cache
def _slurm() -> QueuedRuns:
    from shanty.runtime.slurm import queue, tools

    tools.find()
    return QueuedRuns(queue.SlurmQueue())


_QUEUES = {"slurm": _slurm}  # by the target of a run's site
