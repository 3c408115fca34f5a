"""What a Work of the `mpi` backend promises: order, futures, callbacks, time limits, and that a
failed operation is never a success. Started by mpirun through ../test_torch_group.py.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta

import harness
import torch
import torch.distributed as dist
from mpi4py import MPI

import shanty.torch
from shanty.torch import collectives, worker
from shanty.torch.worker import WORKER


def raises(kind: type[Exception], words: str, call: Callable[[], object]) -> Exception:
    """The error that `call` must raise, with `words` in its text."""
    try:
        call()
    except kind as error:
        assert words in str(error), (words, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")


def fail_once(call: Callable[[], dist.Work]) -> dist.Work:
    """Submit an all_reduce whose MPI call fails, before it communicates."""
    original = collectives.all_reduce

    def broken(*_: object) -> None:
        raise MPI.Exception(MPI.ERR_OTHER)

    collectives.all_reduce = broken  # type: ignore[assignment]
    try:
        return call()
    finally:
        collectives.all_reduce = original


def check_async() -> None:
    world = dist.get_world_size()
    tensors = [torch.full((1000,), float(k)) for k in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    assert works[-1].wait() is True
    for k, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        # One thread runs them in order: the last one done, all are.
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert work.wait() and work.result()[0] is tensor
        assert torch.all(tensor == k * world)


def check_futures() -> None:
    world, order = dist.get_world_size(), []
    works = [dist.all_reduce(torch.tensor([float(k)]), async_op=True) for k in range(20)]
    futures = [work.get_future() for work in works]
    assert works[0].get_future() is futures[0]
    chained = [
        future.then(lambda f, k=k: order.append(k) or f.value()[0] * 2)
        for k, future in enumerate(futures)
    ]
    for k, future in enumerate(torch.futures.wait_all(chained)):
        assert future.item() == 2.0 * k * world
    assert order == sorted(order)


def check_callback_communicates() -> None:
    """As PowerSGD's hook does: operations started and waited for in callbacks, while the main
    thread submits others; the order must not depend on which thread runs a callback."""
    world = dist.get_world_size()
    for _ in range(50):

        def again(future: torch.futures.Future) -> torch.Tensor:
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

        results = []
        for size in (1, 300, 7):
            work = dist.all_reduce(torch.ones(size), async_op=True)
            results.append(work.get_future().then(again))
            dist.all_reduce(torch.ones(size + 1), async_op=True)
        for future in results:
            assert torch.all(future.wait() == world**2)


def check_failure_is_not_success() -> None:
    tensor = torch.ones(3)
    work = fail_once(lambda: dist.all_reduce(tensor, async_op=True))
    future = work.get_future()
    error = raises(shanty.torch.CommunicationError, "all_reduce on group", work.wait)
    assert f"rank {dist.get_rank()} of" in str(error)
    assert work.is_completed() and not work.is_success() and work.exception() is error
    raises(shanty.torch.CommunicationError, "all_reduce", work.result)
    raises(RuntimeError, "all_reduce", future.wait)
    raises(RuntimeError, "all_reduce", future.then(lambda f: f.value()).wait)
    raises(RuntimeError, "all_reduce", work.get_future().wait)
    # A synchronous call raises by itself, and the group goes on.
    raises(dist.DistBackendError, "all_reduce", lambda: fail_once(lambda: dist.all_reduce(tensor)))
    dist.all_reduce(tensor)
    assert torch.all(tensor == dist.get_world_size())


def check_failed_future_of_a_finished_work() -> None:
    work = fail_once(lambda: dist.all_reduce(torch.ones(1), async_op=True))
    assert work.join(60)
    raises(RuntimeError, "all_reduce", work.get_future().wait)  # made after the failure


def check_wrong_length() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(5), 1)
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(4), 1)
    elif dist.get_rank() == 1:
        work = dist.irecv(torch.empty(3), 0)
        raises(shanty.torch.CommunicationError, "recv from 0", work.wait)  # truncated
        work = dist.irecv(torch.empty(4), 0)
        raises(shanty.torch.CommunicationError, "sent 3", work.wait)
        assert not work.is_success()
        dist.recv(torch.empty(4), 0)


def check_time_limit() -> None:
    """Rank 0 waits in vain; the others come late, told so by a message of the script's own."""
    if dist.get_rank() == 0:
        work = dist.barrier(async_op=True)
        error = raises(
            shanty.torch.CommunicationTimeoutError,
            "barrier on group",
            lambda: work.wait(timedelta(milliseconds=50)),
        )
        assert isinstance(error, TimeoutError) and not work.is_completed() and WORKER.is_stuck()
        raises(RuntimeError, "not complete", work.result)
        for rank in range(1, dist.get_world_size()):
            MPI.COMM_WORLD.send("late", rank)
        assert work.wait() and not WORKER.is_stuck()
    else:
        assert MPI.COMM_WORLD.recv(source=0) == "late"
        dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=0.05))
    if dist.get_rank() == 0:
        work = group.recv([torch.empty(1)], 1, 7)
        raises(shanty.torch.CommunicationTimeoutError, "0.05 s", work.wait)
        MPI.COMM_WORLD.send("late", 1)
        assert work.wait(timedelta(seconds=60))
    elif dist.get_rank() == 1:
        assert MPI.COMM_WORLD.recv(source=0) == "late"
        group.send([torch.ones(1)], 0, 7).wait(timedelta(seconds=60))
    dist.barrier()
    dist.destroy_process_group(group)


def check_mistakes() -> None:
    """Found in the caller, before anything is sent: no other rank waits."""
    world = dist.get_world_size()
    ones, half = torch.ones(2), torch.ones(2, dtype=torch.float16)
    many = [torch.ones(2) for _ in range(world)]
    elsewhere = torch.ones(2, device="meta")
    raises(RuntimeError, "on meta", lambda: dist.all_reduce(elsewhere))
    raises(RuntimeError, "CPU tensors", lambda: dist.broadcast(elsewhere, 0))
    raises(RuntimeError, "to_dense", lambda: dist.all_reduce(ones.to_sparse()))
    raises(TypeError, "float8", lambda: dist.all_reduce(ones.to(torch.float8_e4m3fn)))
    raises(TypeError, "BAND", lambda: dist.all_reduce(ones, dist.ReduceOp.BAND))
    flags = torch.ones(2, dtype=torch.bool)
    raises(TypeError, "bools", lambda: dist.all_reduce(flags, dist.ReduceOp.AVG))
    group = dist.group.WORLD
    raises(ValueError, "one tensor for each", lambda: group.allgather([many[1:]], [ones]))
    raises(TypeError, "dtypes differ", lambda: group.allgather([many], [half]))
    raises(ValueError, "as many elements", lambda: group.allgather([many], [torch.ones(3)]))
    raises(ValueError, "as many elements", lambda: group.all_gather_single(ones, ones))
    raises(ValueError, "split", lambda: dist.all_to_all_single(ones, ones, [1], [1]))
    raises(ValueError, "not in a group", lambda: group.send([ones], world, 0))


def check_memory_is_let_go() -> None:
    """After its end an operation keeps no tensor alive, though the thread may sleep for long."""
    tensor = torch.ones(10)
    seen = weakref.ref(tensor)
    dist.all_reduce(tensor)
    del tensor
    gc.collect()
    assert seen() is None


def check_one_thread() -> None:
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("shanty-mpi") == 1
    limits = dist.group.WORLD._limit, dist.new_group(timeout=timedelta(seconds=77))._limit
    assert limits == (99.0, 77.0)


def check_again_after_destroy() -> None:
    worker._LAST_MESSAGES = 0.1
    never = dist.irecv(torch.empty(1), 0, tag=99)  # nobody sends it
    dist.destroy_process_group()
    raises(shanty.torch.CommunicationError, "given up", never.wait)
    assert "shanty-mpi" not in [thread.name for thread in threading.enumerate()]
    MPI.COMM_WORLD.Barrier()  # the world itself was not freed
    dist.init_process_group("mpi")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    dist.init_process_group("mpi", timeout=timedelta(seconds=99))
    harness.run(CHECKS)
    # No destroy_process_group: leaving without it must not hang.
