"""Calls over shapes, dtypes, layouts, splits and groups that Hypothesis makes up, against float64.

Every rank draws the same cases: the seed is fixed and no database is used. Started through
../test_torch_group.py.
"""

from __future__ import annotations

import os

import harness
import numpy as np
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as some
from torch import Tensor
from torch_collectives import FLOATS, INTEGERS, MOVED, close, data, same, wide

import shanty.torch  # noqa: F401

CASES = settings(
    max_examples=40 if os.environ.get("SHANTY_TEST_LONG") else 15,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=False,
    phases=[Phase.generate],  # shrinking would go other ways on other ranks
    suppress_health_check=list(HealthCheck),
)
SHAPES = some.lists(some.sampled_from([0, 1, 2, 3, 5, 64]), max_size=3).map(tuple)
OPS = some.sampled_from(
    [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
)
FOLDS = {
    dist.ReduceOp.SUM: np.add,
    dist.ReduceOp.MIN: np.minimum,
    dist.ReduceOp.MAX: np.maximum,
    dist.ReduceOp.PRODUCT: np.multiply,
}
GROUPS: dict[tuple[int, ...], object] = {}


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same elements in other memory: of another stride, or a part of something larger."""
    match layout:
        case "transposed":
            return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor
        case "strided":
            room = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
            room[..., 0] = tensor
            return room[..., 0]
        case "offset":
            room = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)
            return room[3:].view(tensor.shape).copy_(tensor)
    return tensor


LAYOUTS = some.sampled_from(["plain", "transposed", "strided", "offset"])


def group_of(members: tuple[int, ...]) -> object:
    """The group of these ranks; called by all ranks of the world in the same order."""
    if members not in GROUPS:
        GROUPS[members] = dist.new_group(list(members))
    return GROUPS[members]


@some.composite
def groups(draw: some.DrawFn) -> tuple[int, ...]:
    world = dist.get_world_size()
    return tuple(sorted(draw(some.sets(some.integers(0, world - 1), min_size=1))))


@seed(1)
@CASES
@given(groups(), SHAPES, some.sampled_from([*FLOATS, *INTEGERS]), OPS, LAYOUTS)
def check_all_reduce(members, shape, dtype, op, layout) -> None:
    group = group_of(members)
    if dist.get_rank() in members:
        tensor = laid_out(data(dist.get_rank(), dtype, shape), layout)
        dist.all_reduce(tensor, op, group)
        want = FOLDS[op].reduce([wide(data(r, dtype, shape)) for r in members])
        if not dtype.is_floating_point:
            want = wide(torch.from_numpy(np.asarray(want)).to(dtype))
        close(tensor, np.asarray(want))


@seed(2)
@CASES
@given(groups(), SHAPES, some.sampled_from(MOVED), LAYOUTS, some.data())
def check_broadcast_and_gather(members, shape, dtype, layout, more) -> None:
    root = more.draw(some.sampled_from(members))
    group = group_of(members)
    me = dist.get_rank()
    if me not in members:
        return
    tensor = laid_out(data(me, dtype, shape), layout)
    outputs = [torch.empty_like(data(r, dtype, shape)) for r in members]
    dist.all_gather(outputs, tensor, group)
    for r, output in zip(members, outputs, strict=True):
        same(output, data(r, dtype, shape))
    dist.broadcast(tensor, root, group)
    same(tensor, data(root, dtype, shape))


@seed(3)
@CASES
@given(some.sampled_from(MOVED), some.data())
def check_all_to_all(dtype, more) -> None:
    world, me = dist.get_world_size(), dist.get_rank()
    sizes = some.lists(some.integers(0, 4), min_size=world, max_size=world)
    rows = [more.draw(sizes) for _ in range(world)]  # rows[a][b]: from a to b

    def part(a: int, b: int) -> Tensor:
        return data(a, dtype, (rows[a][b], 3), key=b)

    taken, given_ = [rows[r][me] for r in range(world)], rows[me]
    output = torch.empty((sum(taken), 3), dtype=dtype)
    dist.all_to_all_single(output, torch.cat([part(me, r) for r in range(world)]), taken, given_)
    same(output, torch.cat([part(r, me) for r in range(world)]))


@seed(4)
@CASES
@given(some.sampled_from([*FLOATS, torch.int32]), some.data())
def check_reduce_scatter(dtype, more) -> None:
    world, me = dist.get_world_size(), dist.get_rank()
    sizes = more.draw(some.lists(some.integers(0, 9), min_size=world, max_size=world))
    output = torch.empty(sizes[me], dtype=dtype)
    dist.reduce_scatter(output, [data(me, dtype, (n,), key=k) for k, n in enumerate(sizes)])
    parts = [wide(data(r, dtype, (sizes[me],), key=me)) for r in range(world)]
    close(output, np.add.reduce(parts))


@seed(5)
@CASES
@given(SHAPES, some.sampled_from(MOVED), LAYOUTS, some.integers(0, 30000))
def check_ring(shape, dtype, layout, tag) -> None:
    world, me = dist.get_world_size(), dist.get_rank()
    left = (me - 1) % world
    got = laid_out(torch.zeros_like(data(left, dtype, shape)), layout)
    works = [dist.isend(laid_out(data(me, dtype, shape), layout), (me + 1) % world, tag=tag)]
    works.append(dist.irecv(got, left, tag=tag))
    for work in works:
        work.wait()
    same(got, data(left, dtype, shape))


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    dist.init_process_group("mpi")
    harness.run(CHECKS)
    dist.destroy_process_group()
