"""The calls of torch_collectives.py again, on the ways that only some tensors take: by way of host
memory, in pieces, in half precision cut among the ranks; and calls that torch keeps for other
backends. Started through ../test_torch_group.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch_collectives as plain
from checks import raised
from mpi4py import MPI
from torch.distributed.device_mesh import init_device_mesh

from shanty.collectives import handshake, huge_pages, kernels, operations, ring
from shanty.torch import CommunicationError
from shanty.torch.devices import Way, choose
from shanty.torch.kernels import KERNELS

MOVING = [
    *(plain.check_all_reduce, plain.check_reduce, plain.check_broadcast, plain.check_all_gather),
    *(plain.check_all_gather_into_tensor, plain.check_reduce_scatter, plain.check_all_to_all),
    *(plain.check_gather_and_scatter, plain.check_gather_single, plain.check_layouts),
]


NO_GROUP = (None, dist.GroupMember.NON_GROUP_MEMBER)  # up to torch 2.13, and from 2.15 on


def with_values(calls: list[Callable[[], None]], module: object, **values: object) -> None:
    """Run the calls with other values of a module's constants, the same on every rank."""
    kept = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        for call in calls:
            call()
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def check_by_way_of_host_memory() -> None:
    """As tensors of a GPU that MPI cannot reach; here, they are in host memory anyway."""
    calls = [*MOVING, plain.check_point_to_point]
    with_values(calls, KERNELS, reachable=lambda _: False)


def check_in_pieces() -> None:
    with_values([*MOVING, plain.check_point_to_point], kernels, LARGEST=64)
    reducing = [plain.check_all_reduce, plain.check_reduce, plain.check_reduce_scatter]
    with_values(reducing, operations, _CACHED=64)


def check_huge_pages() -> None:
    """Memory that is reduced again and again gets them, where Linux has any to give."""
    given, reduced, cut = (torch.ones(2 * huge_pages.LEAST, dtype=torch.uint8) for _ in range(3))
    for _ in range(huge_pages.OFTEN):
        huge_pages.count(given.data_ptr(), given.nbytes)
    huge_pages.widen((piece.data_ptr(), 40_000) for piece in cut.split(1 << 16))
    for _ in range(4):
        dist.all_reduce(reduced, dist.ReduceOp.MAX)
    assert torch.all(reduced == 1)
    if has_huge_pages(given):
        assert has_huge_pages(reduced)
        assert has_huge_pages(cut)


def has_huge_pages(tensor: torch.Tensor) -> bool:
    """Whether some are under the tensor's memory."""
    middle, here = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(word, 16) for word in first.split("-"))
            here = start <= middle < end
        elif here and first == "AnonHugePages:":
            return int(rest[0]) > 0
    return False


def check_as_between_hosts() -> None:
    with_values(MOVING, ring, pays=lambda *_: True)
    with_values(MOVING, ring, pays=lambda *_: True, _SHORT=8)
    with_values(MOVING, ring, pays=lambda *_: True, LARGEST=64)


def check_messages_across_collectives() -> None:
    """Messages that are under way meanwhile are not taken for a collective's own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world

    def collective() -> None:
        tensor, output = torch.full((40,), rank + 1.0), torch.zeros(world * 40)
        dist.all_reduce(tensor)
        assert torch.all(tensor == sum(range(1, world + 1)))
        dist.all_to_all_single(output, torch.full((world * 40,), rank + 1.0))
        assert output[::40].tolist() == [each + 1.0 for each in range(world)]

    def collectives_between() -> None:
        with_values([collective], ring, pays=lambda *_: True)
        with_values([collective], kernels, LARGEST=64)

    for tag in (0, 7):
        sent = torch.full((40,), -1.0 - rank)
        early, late = torch.zeros(40), torch.zeros(40)
        works = [dist.isend(sent, right, tag=tag)]  # which nobody has asked for yet
        collectives_between()
        works += [dist.irecv(each, left, tag=tag) for each in (early, late)]  # one sent, one not
        collectives_between()
        works.append(dist.isend(sent, right, tag=tag))
        for work in works:
            work.wait()
        assert torch.all(early == -1.0 - left) and torch.all(late == -1.0 - left)


def check_half_is_added_up_in_order() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        tensor = plain.data(dist.get_rank(), dtype, (5000,))
        exact = plain.data(0, dtype, (5000,)).float()
        for rank in range(1, dist.get_world_size()):
            exact += plain.data(rank, dtype, (5000,))
        dist.all_reduce(tensor)
        plain.same(tensor, exact.to(dtype))


def check_with_shanty_check() -> None:
    """What SHANTY_CHECK=1 adds to a message: a label, with which its dtype is compared."""

    def other_dtype() -> None:
        rank = dist.get_rank()
        for source in (1, None):
            if rank == 1:
                dist.send(torch.ones(3, dtype=torch.int32), 0, tag=4)
            elif rank == 0:
                text = "recv of 3 elements of float32: rank 1 sent 3 of int32 (tag 4)"
                call = lambda source=source: dist.recv(torch.ones(3), source, tag=4)  # noqa: E731
                raised(CommunicationError, call, text)

    calls = [plain.check_point_to_point, plain.check_recv_any_source, other_dtype]
    with_values(calls, handshake, CHECKED=True)


def check_half_cut_among_ranks() -> None:
    half = [plain.check_all_reduce, plain.check_reduce_scatter, plain.check_half_sums_round_once]
    with_values(half, operations, _SHORT_HALF=0)
    with_values(half, operations, _SHORT_HALF=0, _SEGMENT=5)
    with_values(half, operations, _SHORT_HALF=1 << 40)


def check_premultiplied() -> None:
    world = dist.get_world_size()
    for factor in (0.5, torch.tensor([0.5])):
        op = dist._make_nccl_premul_sum(factor)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex64):
            tensor = torch.full((5000,), float(dist.get_rank() + 1)).to(dtype)
            dist.all_reduce(tensor, op)
            assert torch.all(tensor == sum(range(1, world + 1)) / 2)
            whole = torch.ones(world * 3, dtype=dtype)
            output = torch.empty(3, dtype=dtype)
            plain.reduce_scatter_single(output, whole, op)
            assert torch.all(output == world / 2) and torch.all(whole == 1)
            dist.reduce(whole, 0, op)
            assert torch.all(whole == (world / 2 if dist.get_rank() == 0 else 1))


def check_waiting_and_not() -> None:
    """Some ranks wait for a call at once, others later: the calls must find each other."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for number in range(60):
        tensor, works = torch.ones(number + 1), []
        for turn in range(3):
            if (rank + number + turn) % 3:
                dist.all_reduce(tensor)
            else:
                works.append(dist.all_reduce(tensor, async_op=True))
        for work in works:
            work.wait()
        assert torch.all(tensor == world**3)


def check_monitored_barrier() -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)
    dist.monitored_barrier()


def check_split_group() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    ends = [[world - 1, 0], *([[1]] if world > 2 else [])]
    made = dist.split_group(split_ranks=ends, timeout=timedelta(seconds=66))
    assert (made in NO_GROUP) == (1 < rank < world - 1)
    if made not in NO_GROUP:
        members = [0, world - 1] if rank in (0, world - 1) else [1]
        assert sorted(dist.get_process_group_ranks(made)) == members
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=made)
        assert tensor.item() == sum(members)
        inner = dist.split_group(made, [[0]])
        assert (inner not in NO_GROUP) == (dist.get_rank(made) == 0)


def check_groups_of_gloo() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="gloo")
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(range(world))
    dist.monitored_barrier(group)
    pair = dist.new_group([0, 1], backend="gloo")
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 2 * sum(range(world))


def check_mesh() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    shape = (2, world // 2) if world % 2 == 0 else (1, world)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("a", "b"))
    for name in ("a", "b"):
        group = mesh[name].get_group()
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(dist.get_process_group_ranks(group))


def check_objects_between_two() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send_object_list([{"a": 1}, "text"], 1)
    elif rank == 1:
        box: list[object] = [None, None]
        assert dist.recv_object_list(box, 0) == 0
        assert box == [{"a": 1}, "text"]


def check_nothing_is_left() -> None:
    """No communicator, request or message: what others sent has been taken."""
    dist.barrier()
    assert not MPI.COMM_WORLD.Iprobe()


def check_which_way_tensors_of_gpus_go() -> None:
    """As is chosen for ranks with these hosts, GPUs, with NCCL and with an MPI that knows CUDA."""
    a, b, none = frozenset({"a"}), frozenset({"b"}), frozenset()
    for facts, asked, way in (
        ([("h", none, False, False)] * 2, "", None),
        ([("h", a, True, True), ("h", b, True, True)], "", Way.NCCL),
        ([("h", a | b, True, True)] * 2, "", Way.NCCL),
        ([("h", a, True, True)] * 2, "", Way.AWARE),  # one GPU for two ranks
        ([("h", a, True, False), ("i", b, False, True)], "", Way.STAGED),
        ([("h", a, True, True), ("i", a, True, True)], "", Way.NCCL),  # one each
        ([("h", a, True, True), ("i", none, False, True)], "", Way.AWARE),
        ([("h", a, True, True)], "staged", Way.STAGED),
    ):
        assert choose(facts, asked) is way, facts
    words = "SHANTY_CUDA=fast: must be one of nccl, aware, staged."
    raised(ValueError, lambda: choose([("h", a, True, True)], "fast"), words)
