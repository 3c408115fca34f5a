"""Serve the line until nothing waits. There is one such process for each home of shanty's."""

from __future__ import annotations

import os

from shanty.launch.machines import line
from shanty.launch.queue.service import Service
from shanty.runtime.rundir import home


def main() -> None:
    """Do so, unless another process does."""
    place = home(os.environ)
    lock = line.take(line.process_lock(place))
    if lock is not None:
        Service(place, lock).run()


if __name__ == "__main__":
    main()
