"""Guards `MPIPoolExecutor` in a rank: MPI_Comm_spawn, which starts its workers, may fail.

mpi4py asks for them in a thread of its own. When MPI refuses, that thread ends with a traceback and
the script waits for its results for ever. Loaded by path, as all that is in a rank, once the
script has imported mpi4py.futures; with `python -m mpi4py.futures` nothing is spawned.
"""

from __future__ import annotations

import functools
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def offer(core: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Stand around the function of the module `mpi4py.futures._core` that spawns workers.

    `process` is this rank's. `claim` tells whether this process is the rank, not a helper of it.
    """
    spawn = getattr(core, "client_spawn", None)
    if spawn is None:
        return

    @functools.wraps(spawn)
    def told(*args: Any, **kwargs: Any) -> Any:
        if claim():
            process.tell("spawning")
        try:
            return spawn(*args, **kwargs)
        except core.MPI.Exception as error:
            traceback.print_exc()
            process.refused(str(error))

    core.client_spawn = told
