"""Collectives on numpy arrays, in a process that cannot load a framework.

Run by ../test_collectives.py, on two ranks or more.
"""

from __future__ import annotations

import sys

import no_frameworks  # before any import of shanty's
import numpy as np
from checks import checks_of, raised, run
from mpi4py import MPI

from shanty.collectives import operations, process_sets, world
from shanty.collectives.array_kernels import KERNELS, Array
from shanty.collectives.errors import HorovodInternalError, MismatchError
from shanty.collectives.handshake import Channel, Handshake
from shanty.collectives.kernels import reduction
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Kind, Op, Request
from shanty.collectives.watchdog import Activity, State

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = sum(range(1, SIZE + 1))


def full(*shape: int, dtype: str = "float32") -> Array:
    """This rank's number, counted from 1, in every element."""
    return np.full(shape, RANK + 1, dtype)


def asked(request: Request, group: ProcessSet = global_process_set) -> list[Array]:
    process_sets.negotiator(group).queue.put(request)
    return list(request.wait())


def check_names_in_any_order() -> None:
    tensors = {f"grad.{i}": full(10 + i) for i in range(30)}
    queue = process_sets.negotiator(global_process_set).queue
    for _ in range(4):  # from the third time on, they come as they came before
        for each in tensors.values():
            each[:] = RANK + 1
        names = sorted(tensors, reverse=RANK % 2 == 1)
        entries = [queue.add(name, tensors[name], Op.SUM) for name in names]
        for entry in entries:
            entry.wait()
        assert all((each == TOTAL).all() for each in tensors.values())


def check_a_fused_group() -> None:
    for dtype in ("float16", "float32", "float64", "int32", "int64"):
        for op, expected in ((Op.SUM, TOTAL), (Op.AVERAGE, TOTAL / SIZE), (Op.MAX, SIZE)):
            tensors = [full(7, 3, dtype=dtype), full(200_000, dtype=dtype), full(1, dtype=dtype)]
            name = f"group.{dtype}.{op.name}"
            asked(Request(Kind.ALLREDUCE, name, tensors, tensors, op=op, grouped=True))
            exact = np.array(expected).astype(dtype)
            assert all((each == exact).all() for each in tensors), name


def check_memory_of_somebody_else() -> None:
    """Memory is reduced where it lies: it is not copied on the way in or out."""
    owner = full(1000, dtype="float64")
    tensor = np.frombuffer(memoryview(owner), "float64").reshape(10, 100)
    assert tensor.ctypes.data == owner.ctypes.data
    asked(Request(Kind.ALLREDUCE, "buffer", (tensor,), (tensor,)))
    assert (owner == TOTAL).all()


def check_the_other_operations() -> None:
    (rows,) = asked(Request(Kind.ALLGATHER, "rows", (full(RANK + 1, 2),)))
    assert rows[:, 0].tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(rank + 1)]
    sent = full(5)
    asked(Request(Kind.BROADCAST, "sent", (sent,), (sent,), root=SIZE - 1))
    assert (sent == SIZE).all()
    (mixed,) = asked(Request(Kind.ALLTOALL, "mixed", (full(2 * SIZE),)))
    assert mixed.tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(2)]
    (share,) = asked(Request(Kind.REDUCESCATTER, "share", (full(2 * SIZE + 1),)))
    assert (share == TOTAL).all() and len(share) == 2 + (RANK == 0)
    if not SIZE & (SIZE - 1):
        same = np.ones(9, np.float32)
        asked(Request(Kind.ALLREDUCE, "adasum", (same,), (same,), op=Op.ADASUM))
        assert np.allclose(same, 1)


def check_strides() -> None:
    tensor = np.zeros((40, 60), np.float32).T if RANK else np.zeros((60, 40), np.float32)
    tensor += RANK + 1
    asked(Request(Kind.ALLREDUCE, "strides", (tensor,), (tensor,)))
    assert (tensor == TOTAL).all()


def check_a_process_set() -> None:
    first = process_sets.add_process_set([0])
    if RANK == 0:
        alone = full(3)
        asked(Request(Kind.ALLREDUCE, "alone", (alone,), (alone,)), first)
        assert (alone == 1).all()
    else:
        raised(ValueError, lambda: process_sets.negotiator(first), "not a member")
    assert process_sets.remove_process_set(first)


def check_requests_that_differ() -> None:
    tensor = full(3 + RANK)
    request = Request(Kind.ALLREDUCE, "differs", (tensor,), (tensor,))
    words = f"rank {RANK}: allreduce.differs(SUM, float32, ({3 + RANK}))"
    raised(HorovodInternalError, lambda: asked(request), words)


def meet(at: Channel, *key: object) -> None:
    handshake = Handshake(at, key, 0, 30.0, "the group of all ranks")
    handshake.wait(lambda: None)
    handshake.compare()


def check_a_handshake() -> None:
    """It needs a communicator and a key: whatever comes after it, all ranks are there for it."""
    state = State(Activity.RUNS, "runs", 0)
    at = Channel.form(MPI.COMM_WORLD.Dup(), lambda: state, KERNELS)
    meet(at, "loading", "train.csv")
    lines = [f"  rank {rank}: loading(part-{rank}.csv)" for rank in range(SIZE)]
    raised(MismatchError, lambda: meet(at, "loading", f"part-{RANK}.csv"), "\n".join(lines))
    meet(at, "all_reduce", "float32")  # the channel can be used again
    tensor = full(100_000)
    operations.all_reduce(at, [tensor], reduction(tensor.dtype, "SUM", KERNELS))
    assert (tensor == TOTAL).all()
    at.free()


if __name__ == "__main__":
    assert world.init(None, None, KERNELS, "numpy")
    run(checks_of(dict(globals())), MPI.COMM_WORLD.Barrier)
    world.shutdown()
    assert not any(sys.modules.get(name) for name in no_frameworks.BLOCKED)
