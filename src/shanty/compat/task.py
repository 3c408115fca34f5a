"""What each rank of `horovod.run` does: `python -m shanty.compat.task`."""

from __future__ import annotations

import sys

import shanty
from shanty.compat import payload

RESULTS = "horovod-run.pickle"  # among the run's artifacts: a list of pickles, by rank


def main() -> None:
    """Take the call from rank 0's standard input, make it, and give the results to rank 0."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    given = sys.stdin.buffer.read() if world.rank == 0 else None
    func, args, kwargs = payload.load_call(world.bcast(given))
    result = payload.dump(func(*args, **kwargs))
    if "shanty.collectives.world" in sys.modules:
        from shanty.collectives import world as horovod

        horovod.shutdown()
    results = world.gather(result)
    if results is not None:
        (shanty.artifacts() / RESULTS).write_bytes(payload.dump(results))


if __name__ == "__main__":
    main()
