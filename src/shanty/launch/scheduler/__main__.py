"""Serve the queue until nothing waits. There is one such process for each home of shanty's."""

from __future__ import annotations

import os

from shanty.launch.machines import queue
from shanty.launch.scheduler.scheduler import Scheduler
from shanty.runtime.rundir import home


def main() -> None:
    """Do so, unless another process does."""
    place = home(os.environ)
    lock = queue.take(queue.process_lock(place))
    if lock is not None:
        Scheduler(place, lock).run()


if __name__ == "__main__":
    main()
