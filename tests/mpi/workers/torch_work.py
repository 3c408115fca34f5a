"""What a Work of the `mpi` backend promises: order, futures, callbacks, time limits, and that a
failed operation is never a success. Started by mpirun through ../test_torch_group.py.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import raised
from mpi4py import MPI

import shanty.torch
from shanty.collectives import handshake, operations
from shanty.torch import background_thread
from shanty.torch.background_thread import THREAD
from shanty.torch.work import MPIWork


def fail_once(call: Callable[[], dist.Work]) -> dist.Work:
    """Submit an all_reduce whose MPI call fails, before it communicates."""
    original = operations.all_reduce

    def broken(*_: object) -> None:
        raise MPI.Exception(MPI.ERR_OTHER)

    operations.all_reduce = broken  # type: ignore[assignment]
    try:
        return call()
    finally:
        operations.all_reduce = original


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


def check_callback_before_the_next_call() -> None:
    """What a callback begins comes before the caller's next call, on every rank: both are of one
    shape, so a mix-up would be an error in the sums alone.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    for turn in range(20):

        def again(future: torch.futures.Future, turn: int = turn) -> torch.Tensor:
            if (turn + rank) % 2:
                time.sleep(0.002)  # longer than a caller tries by itself
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

        work = dist.all_reduce(torch.ones(5), async_op=True)
        future = work.get_future().then(again)
        work.wait()
        other = torch.full((5,), 10.0)
        dist.all_reduce(other)
        assert torch.all(other == 10 * world)
        assert torch.all(future.wait() == world**2)


def check_waited_for_at_once_runs_in_the_caller() -> None:
    """Also after callbacks have begun operations (the checks before this one).

    A broadcast, since torch 2.7 does not say of an all_reduce whether its caller waits.
    """
    ran = []
    original, patience = operations.broadcast, background_thread._HERE

    def noted(*arguments: object) -> None:
        ran.append(threading.current_thread())
        original(*arguments)

    end = time.monotonic() + 60
    while THREAD._given != THREAD._done:
        assert time.monotonic() < end
        time.sleep(0.001)
    operations.broadcast, background_thread._HERE = noted, 60.0
    try:
        dist.broadcast(torch.ones(1), 0)
    finally:
        operations.broadcast, background_thread._HERE = original, patience
    assert ran == [threading.main_thread()]


def check_messages_while_a_collective_waits() -> None:
    """As with gloo, its other ranks may come only after messages that are begun later than it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    word, total, large = torch.tensor([5.0]), torch.ones(1), torch.ones(1 << 20)
    if rank == 0:
        question = dist.irecv(word, 1)
        reduced = dist.all_reduce(total, async_op=True)
        question.wait()
        dist.send(word + 1, 1)
        reduced.wait()
        message = dist.irecv(large)
        barrier = dist.barrier(async_op=True)
        message.wait()
        barrier.wait()
    else:
        if rank == 1:
            dist.send(word, 0)
            dist.recv(word, 0)
            assert word.item() == 6.0
        dist.all_reduce(total)
        if rank == 1:
            dist.send(large, 0)
        dist.barrier()
    assert total.item() == world


def check_interrupted() -> None:
    """Ctrl-C amid a call: its group is given up on all ranks, others of the same ranks are not."""
    groups, patience, soon = [dist.new_group()], background_thread._HERE, handshake._SOON
    call = lambda: dist.broadcast(torch.ones(1), 0, group=groups[0])  # noqa: E731
    handshake._SOON = 0.0  # as if the others came much later
    if dist.get_rank() == 0:
        background_thread._HERE = 60.0
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        raised(KeyboardInterrupt, call)
        background_thread._HERE = patience
        raised(shanty.torch.CommunicationError, call, "cannot be used any more")
        for rank in range(1, dist.get_world_size()):
            MPI.COMM_WORLD.send("interrupted", rank)
    else:
        assert MPI.COMM_WORLD.recv(source=0) == "interrupted"
        raised(shanty.torch.CommunicationError, call, "rank 0 gave up: broadcast")
    assert THREAD.gave_up is not None
    THREAD.gave_up = None  # or it would end the run
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    handshake._SOON = soon
    memory = weakref.ref(groups[0].channel)
    dist.destroy_process_group(groups.pop())
    gc.collect()
    assert memory() is not None  # MPI may write to it for ever


def check_failure_is_not_success() -> None:
    tensor = torch.ones(3)
    work = fail_once(lambda: dist.all_reduce(tensor, async_op=True))
    future = work.get_future()
    place = f"rank {dist.get_rank()} of"
    text = raised(shanty.torch.CommunicationError, work.wait, "all_reduce on group", place)
    assert work.is_completed() and not work.is_success() and str(work.exception()) == text
    raised(shanty.torch.CommunicationError, work.result, "all_reduce")
    raised(RuntimeError, future.wait, "all_reduce")
    raised(RuntimeError, future.then(lambda f: f.value()).wait, "all_reduce")
    raised(RuntimeError, work.get_future().wait, "all_reduce")
    # A synchronous call raises by itself, and the group goes on.
    raised(dist.DistBackendError, lambda: fail_once(lambda: dist.all_reduce(tensor)), "all_reduce")
    dist.all_reduce(tensor)
    assert torch.all(tensor == dist.get_world_size())


def check_failed_future_of_a_finished_work() -> None:
    work = fail_once(lambda: dist.all_reduce(torch.ones(1), async_op=True))
    assert work.join(60)
    raised(RuntimeError, work.get_future().wait, "all_reduce")  # made after the failure


def check_wrong_length() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(5), 1)
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(4), 1)
    elif dist.get_rank() == 1:
        work = dist.irecv(torch.empty(3), 0)
        raised(shanty.torch.CommunicationError, work.wait, "recv from 0")  # truncated
        work = dist.irecv(torch.empty(4), 0)
        raised(shanty.torch.CommunicationError, work.wait, "sent 3")
        assert not work.is_success()
        dist.recv(torch.empty(4), 0)


def check_time_limit() -> None:
    """Rank 0 waits in vain; the others come late, told so by a message of the script's own."""
    if dist.get_rank() == 0:
        work = dist.barrier(async_op=True)
        late = shanty.torch.CommunicationTimeoutError
        raised(late, lambda: work.wait(timedelta(milliseconds=50)), "barrier on group")
        assert issubclass(late, TimeoutError) and not work.is_completed() and THREAD.is_stuck()
        raised(RuntimeError, work.result, "not complete")
        for rank in range(1, dist.get_world_size()):
            MPI.COMM_WORLD.send("late", rank)
        assert work.wait() and not THREAD.is_stuck()
    else:
        assert MPI.COMM_WORLD.recv(source=0) == "late"
        dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if dist.get_rank() == 0:
        work = group.recv([torch.empty(1)], 1, 7)
        raised(shanty.torch.CommunicationTimeoutError, work.wait, "0.3 s")
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
    raised(RuntimeError, lambda: dist.all_reduce(elsewhere), "on meta")
    raised(RuntimeError, lambda: dist.broadcast(elsewhere, 0), "CPU tensors")
    raised(RuntimeError, lambda: dist.broadcast(ones.to_sparse(), 0), "to_dense")
    raised(RuntimeError, lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()), "to_dense")
    raised(TypeError, lambda: dist.all_reduce(ones.to_sparse(), dist.ReduceOp.MAX), "SUM and AVG")
    raised(TypeError, lambda: dist.all_reduce(ones.to(torch.float8_e4m3fn)), "float8")
    raised(TypeError, lambda: dist.all_reduce(ones, dist.ReduceOp.BAND), "BAND")
    flags = torch.ones(2, dtype=torch.bool)
    raised(TypeError, lambda: dist.all_reduce(flags, dist.ReduceOp.AVG), "bools")
    group = dist.group.WORLD
    raised(ValueError, lambda: group.allgather([many[1:]], [ones]), "one tensor for each")
    raised(TypeError, lambda: group.allgather([many], [half]), "dtypes differ")
    raised(ValueError, lambda: group.allgather([many], [torch.ones(3)]), "as many elements")
    raised(ValueError, lambda: group.all_gather_single(ones, ones), "as many elements")
    raised(ValueError, lambda: dist.all_to_all_single(ones, ones, [1], [1]), "split")
    raised(ValueError, lambda: group.send([ones], world, 0), "not in a group")


def check_memory_is_let_go() -> None:
    """After its end an operation keeps no tensor alive, though the thread may sleep for long."""
    tensor = torch.ones(10)
    seen = weakref.ref(tensor)
    dist.all_reduce(tensor)
    del tensor
    gc.collect()
    assert seen() is None


def check_messages_outlive_another_group() -> None:
    """Destroying a group waits for its own messages only."""
    word, patience = torch.zeros(1), background_thread._LAST_MESSAGES
    message = dist.irecv(word, 0, tag=5) if dist.get_rank() == 1 else None
    group = dist.new_group()
    background_thread._LAST_MESSAGES, begun = 60.0, time.monotonic()
    dist.destroy_process_group(group)
    assert time.monotonic() - begun < 30
    background_thread._LAST_MESSAGES = patience
    if dist.get_rank() == 0:
        assert MPI.COMM_WORLD.recv(source=1) == "destroyed"
        dist.send(word, 1, tag=5)
    if message is not None:
        MPI.COMM_WORLD.send("destroyed", 0)
        message.wait()


def check_coalesced_as_one() -> None:
    """Operations of several kinds as one: complete when all are."""
    world, rank = dist.get_world_size(), dist.get_rank()
    first, second = torch.full((4,), float(rank)), torch.empty(world)
    on = torch.device("cpu")
    with dist.distributed_c10d._coalescing_manager(device=on, async_ops=True) as coalesced:
        dist.broadcast(first, world - 1, async_op=True)
        dist.all_to_all_single(second, torch.ones(world), async_op=True)
    coalesced.wait()
    (work,) = coalesced.works
    assert work.is_completed() and work.is_success() and work.exception() is None
    for results in (work.result(), work.get_future().wait()):
        assert [id(each) for each in results] == [id(first), id(second)]
    assert torch.all(first == world - 1) and torch.all(second == 1)


def check_stop_in_vain() -> None:
    """A thread that did not stop in time goes on, and does not stop later."""
    gate = threading.Event()
    body = lambda: gate.wait(60) and None  # noqa: E731
    work = THREAD.submit(MPIWork(THREAD.wait_for, "waiting", "this rank", body, [], 60.0))
    assert not THREAD.stop(0.05)
    gate.set()
    work.wait()
    for _ in range(2):
        dist.all_reduce(torch.ones(1), async_op=True).wait()


def check_one_thread() -> None:
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("shanty-mpi") == 1
    limits = dist.group.WORLD._limit, dist.new_group(timeout=timedelta(seconds=77))._limit
    assert limits == (99.0, 77.0)


def check_again_after_destroy() -> None:
    background_thread._LAST_MESSAGES = 0.1
    never = dist.irecv(torch.empty(1), 0, tag=99)  # nobody sends it
    dist.destroy_process_group()
    raised(shanty.torch.CommunicationError, never.wait, "given up")
    assert "shanty-mpi" not in [thread.name for thread in threading.enumerate()]
    MPI.COMM_WORLD.Barrier()  # the world itself was not freed
    dist.init_process_group("mpi")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def begin() -> None:
    dist.init_process_group("mpi", timeout=timedelta(seconds=99))


def end() -> None:
    """No destroy_process_group: leaving without it must not hang."""
