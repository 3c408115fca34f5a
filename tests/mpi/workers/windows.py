"""All ranks add to a counter of rank 0 through windows of each kind, by one-sided calls."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
KINDS = ("Allocate", "Create", "Create_dynamic")
TIMES = 20


def counted(kind: str) -> int:
    """What the counter is at the end."""
    memory, one, before = np.zeros(1, "i8"), np.ones(1, "i8"), np.zeros(1, "i8")
    if kind == "Allocate":
        window = MPI.Win.Allocate(memory.nbytes, 8, comm=world)
        window.tomemory()[:] = bytes(memory.nbytes)
    elif kind == "Create":
        window = MPI.Win.Create(memory, 8, comm=world)
    else:
        window = MPI.Win.Create_dynamic(comm=world)
        window.Attach(memory)
    place = world.bcast(MPI.Get_address(memory)) if kind == "Create_dynamic" else 0
    world.Barrier()
    for _ in range(TIMES):
        window.Lock(0)
        window.Fetch_and_op(one, before, 0, place, MPI.SUM)
        window.Unlock(0)
    world.Barrier()
    window.Lock(0, MPI.LOCK_SHARED)
    window.Get(before, 0, (place, 1, MPI.INT64_T))
    window.Unlock(0)
    world.Barrier()
    if kind == "Create_dynamic":
        window.Detach(memory)
    window.Free()
    return int(before[0])


def shared() -> int:
    """The same in memory that the ranks of a host share; how many of them there are."""
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    window = MPI.Win.Allocate_shared(8 if host.rank == 0 else 0, 8, comm=host)
    numbers = np.frombuffer(window.Shared_query(0)[0], "i8")
    numbers[:] = 0
    window.Fence()
    window.Accumulate(np.ones(1, "i8"), 0)
    window.Fence()
    total = int(numbers[0])
    window.Fence()
    window.Free()
    assert total == host.size, (total, host.size)
    return total


found = [counted(kind) for kind in KINDS]
assert found == [TIMES * world.size] * len(KINDS), found
print("windows of", world.size, "and", shared(), "ranks", flush=True)
