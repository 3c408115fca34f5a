"""Every call of the `mpi` backend against a reference that numpy computes in float64.

Each rank can make the data of all ranks (`data(rank, …)`), so each computes the reference itself.
Started by mpirun through ../test_torch_group.py; exits with nonzero at the first mismatch.
"""

from __future__ import annotations

from functools import reduce as fold

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import shanty.torch

# torch 2.13 renamed them; the old names warn.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16]
MOVED = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]
# Relative error of one rounding, and the slack for the order of summation in wide types.
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def data(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (7, 3), key: int = 0) -> Tensor:
    """What rank `rank` holds: the same on whichever rank it is made."""
    made = torch.Generator().manual_seed(1000 * key + rank)
    if dtype is torch.bool:
        return torch.rand(shape, generator=made) < 0.5
    if dtype.is_complex or dtype.is_floating_point:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=made, dtype=wide).to(dtype)
    return torch.randint(0, 5, shape, generator=made).to(dtype)


def wide(tensor: Tensor) -> np.ndarray:
    """The exact values in numpy's widest fitting type."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128).numpy()
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64).numpy()


def close(got: Tensor, want: np.ndarray) -> None:
    """Equal for integers; within one rounding of the exact result for floats."""
    assert tuple(got.shape) == want.shape, (got.shape, want.shape)
    if not (got.is_floating_point() or got.is_complex()):
        np.testing.assert_array_equal(wide(got), want)
        return
    rounding = ROUNDING.get(got.dtype, 1e-6)
    np.testing.assert_allclose(wide(got), want, rtol=1.01 * rounding, atol=rounding * 1e-1)


def same(got: Tensor, want: Tensor) -> None:
    """Equal bit for bit, shape and dtype included."""
    assert got.shape == want.shape and got.dtype == want.dtype, (got, want)
    got, want = (torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()) for x in (got, want))
    raw = (x.reshape(-1).view(torch.uint8) for x in (got, want))
    assert torch.equal(*raw), (got, want)


def ranks() -> range:
    return range(dist.get_world_size())


REFERENCE = {
    dist.ReduceOp.SUM: np.add,
    dist.ReduceOp.PRODUCT: np.multiply,
    dist.ReduceOp.MIN: np.minimum,
    dist.ReduceOp.MAX: np.maximum,
    dist.ReduceOp.BAND: np.bitwise_and,
    dist.ReduceOp.BOR: np.bitwise_or,
    dist.ReduceOp.BXOR: np.bitwise_xor,
}


def reference(op: dist.ReduceOp.RedOpType, dtype: torch.dtype, key: int = 0) -> np.ndarray:
    parts = [wide(data(r, dtype, key=key)) for r in ranks()]
    if op == dist.ReduceOp.AVG:
        total = fold(np.add, parts)
        return total / len(parts) if dtype.is_floating_point else np.trunc(total / len(parts))
    total = fold(REFERENCE[op], parts)
    return np.minimum(total, 1) if dtype is torch.bool else total


def reductions() -> list[tuple[dist.ReduceOp.RedOpType, torch.dtype]]:
    ops = dist.ReduceOp
    bits = [ops.BAND, ops.BOR, ops.BXOR]
    pairs = [(op, t) for t in FLOATS for op in (ops.SUM, ops.AVG, ops.PRODUCT, ops.MIN, ops.MAX)]
    pairs += [(op, t) for t in INTEGERS for op in REFERENCE]
    pairs += [(ops.AVG, t) for t in INTEGERS if t is not torch.uint16]  # torch cannot divide it
    pairs += [(op, torch.bool) for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX, *bits)]
    return [*pairs, (ops.SUM, torch.complex64), (ops.SUM, torch.complex128)]


def check_all_reduce() -> None:
    for op, dtype in reductions():
        tensor = data(dist.get_rank(), dtype)
        dist.all_reduce(tensor, op)
        close(tensor, reference(op, dtype))


def check_all_reduce_of_sparse_tensors() -> None:
    """Each rank has other rows, one of them twice, and rank 0 has none."""
    ranks = dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        every = []
        for rank in range(ranks):
            rows = torch.tensor([[rank, 5, 5]])[:, : 3 * min(rank, 1)]
            values = torch.arange(1, 13, dtype=dtype).reshape(3, 4)[: 3 * min(rank, 1)]
            every.append(torch.sparse_coo_tensor(rows, values, (ranks + 6, 4)))
        want = sum(each.to_dense() for each in every)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            got = every[dist.get_rank()].clone()
            dist.all_reduce(got, op)
            assert got.is_sparse
            whole = want if op == dist.ReduceOp.SUM else (want / ranks).to(dtype)
            torch.testing.assert_close(got.to_dense(), whole, rtol=1e-2, atol=0)
            got += got  # as a backward pass does


def check_half_sums_round_once() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        tensor = data(dist.get_rank(), dtype, (1000,))
        exact = sum(data(r, dtype, (1000,)).float() for r in ranks())
        dist.all_reduce(tensor)
        same(tensor, exact.to(dtype)) if len(ranks()) == 2 else close(tensor, wide(exact))


def check_reduce() -> None:
    for root in ranks():
        for op, dtype in reductions():
            tensor = data(dist.get_rank(), dtype)
            dist.reduce(tensor, root, op)
            if dist.get_rank() == root:
                close(tensor, reference(op, dtype))
            else:
                same(tensor, data(dist.get_rank(), dtype))


def check_broadcast() -> None:
    for root in ranks():
        for dtype in MOVED:
            tensor = data(dist.get_rank(), dtype)
            dist.broadcast(tensor, root)
            same(tensor, data(root, dtype))


def check_all_gather() -> None:
    me = dist.get_rank()
    for dtype in MOVED:
        outputs = [torch.empty_like(data(r, dtype)) for r in ranks()]
        dist.all_gather(outputs, data(me, dtype))
        for r in ranks():
            same(outputs[r], data(r, dtype))
        uneven = [torch.empty_like(data(r, dtype, (r, 2))) for r in ranks()]
        dist.all_gather(uneven, data(me, dtype, (me, 2)))
        for r in ranks():
            same(uneven[r], data(r, dtype, (r, 2)))


def check_all_gather_into_tensor() -> None:
    me, world = dist.get_rank(), len(ranks())
    for dtype in MOVED:
        want = torch.stack([data(r, dtype) for r in ranks()])
        for shape in ((world, 7, 3), (world * 7, 3)):
            output = torch.empty(shape, dtype=dtype)
            all_gather_single(output, data(me, dtype))
            same(output, want.view(shape))
        inplace = torch.zeros_like(want)
        inplace[me] = data(me, dtype)
        all_gather_single(inplace, inplace[me])  # as FSDP2 does
        same(inplace, want)
        shifted = torch.zeros_like(want)
        shifted[0] = data(me, dtype)
        all_gather_single(shifted, shifted[0])  # in place on rank 0 alone
        same(shifted, want)


def check_reduce_scatter() -> None:
    me, world, ops = dist.get_rank(), len(ranks()), dist.ReduceOp
    for dtype in (*FLOATS, torch.int32):
        for op in (ops.SUM, ops.AVG, ops.MAX):
            close_to = reference(op, dtype, key=me)
            output = torch.empty_like(data(me, dtype))
            dist.reduce_scatter(output, [data(me, dtype, key=k) for k in ranks()], op)
            close(output, close_to)
            stacked = torch.cat([data(me, dtype, key=k) for k in ranks()])
            reduce_scatter_single(output, stacked, op)
            close(output, close_to)
            reduce_scatter_single(stacked[:7], stacked, op)  # output within input
            close(stacked[:7], close_to)
        uneven = [data(me, dtype, (k + 1,), key=k) for k in ranks()]
        output = torch.empty(me + 1, dtype=dtype)
        dist.reduce_scatter(output, uneven)
        close(output, fold(np.add, [wide(data(r, dtype, (me + 1,), key=me)) for r in ranks()]))
    assert world > 1


def check_all_to_all() -> None:
    me, world = dist.get_rank(), len(ranks())
    for dtype in MOVED:

        def part(a: int, b: int, dtype: torch.dtype = dtype) -> Tensor:
            return data(a, dtype, (a + 2 * b, 2), key=b)  # from a to b

        outputs = [torch.empty_like(part(r, me)) for r in ranks()]
        dist.all_to_all(outputs, [part(me, r) for r in ranks()])
        for r in ranks():
            same(outputs[r], part(r, me))
        want = torch.cat([part(r, me) for r in ranks()])
        output = torch.empty_like(want)
        dist.all_to_all_single(
            output,
            torch.cat([part(me, r) for r in ranks()]),
            [len(part(r, me)) for r in ranks()],
            [len(part(me, r)) for r in ranks()],
        )
        same(output, want)
        output = torch.empty_like(data(0, dtype, (world, 5)))
        dist.all_to_all_single(output, data(me, dtype, (world, 5)))
        same(output, torch.stack([data(r, dtype, (world, 5))[me] for r in ranks()]))


def check_gather_and_scatter() -> None:
    me = dist.get_rank()
    for root in ranks():
        for dtype in MOVED:
            outputs = [torch.empty_like(data(r, dtype)) for r in ranks()] if me == root else None
            dist.gather(data(me, dtype), outputs, root)
            for r, output in enumerate(outputs or []):
                same(output, data(r, dtype))
            inputs = [data(root, dtype, key=r) for r in ranks()] if me == root else None
            output = torch.empty_like(data(me, dtype))
            dist.scatter(output, inputs, root)
            same(output, data(root, dtype, key=me))


def check_gather_single() -> None:
    if not hasattr(dist, "gather_single"):  # before torch 2.15
        return
    me = dist.get_rank()
    for root in ranks():
        for dtype in MOVED:
            want = torch.cat([data(r, dtype) for r in ranks()])
            for output in (torch.empty_like(want), torch.empty_like(want.T).T):
                dist.gather_single(data(me, dtype), output if me == root else None, root)
                if me == root:
                    same(output, want)


def check_point_to_point() -> None:
    me, world = dist.get_rank(), len(ranks())
    left, right = (me - 1) % world, (me + 1) % world
    for dtype in MOVED:
        tensor = torch.empty_like(data(left, dtype))
        if me == 0:
            dist.send(data(me, dtype), right)
            dist.recv(tensor, left)
        else:
            dist.recv(tensor, left)
            dist.send(data(me, dtype), right)
        same(tensor, data(left, dtype))
    # All send before they receive, messages too long to be buffered: nobody may block.
    sent, got = data(me, torch.float32, (1 << 20,)), torch.empty(1 << 20)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
    ):
        work.wait()
    same(got, data(left, torch.float32, (1 << 20,)))
    # Tags tell messages apart whatever the order of the receives; a collective may come between.
    works = [dist.isend(torch.tensor([tag]), right, tag=tag) for tag in (1, 2)]
    second, first = torch.tensor([0]), torch.tensor([0])
    late = dist.irecv(second, left, tag=2)
    dist.barrier()
    dist.recv(first, left, tag=1)
    for work in (*works, late):
        work.wait()
    assert (first.item(), second.item()) == (1, 2)


def check_recv_any_source() -> None:
    me, world = dist.get_rank(), len(ranks())
    if me != 0:
        dist.send(torch.tensor([me]), 0)
        return
    seen = set()
    for _ in range(world - 1):
        tensor = torch.tensor([0])
        source = dist.recv(tensor)
        assert source == tensor.item()
        seen.add(source)
    assert seen == set(range(1, world))


def check_objects() -> None:
    me = dist.get_rank()
    mine = {"rank": me, "blob": "x" * (100 * me)}
    everybody = [{"rank": r, "blob": "x" * (100 * r)} for r in ranks()]
    gathered = [None] * len(everybody)
    dist.all_gather_object(gathered, mine)
    assert gathered == everybody
    at_root = [None] * len(everybody) if me == 1 else None
    dist.gather_object(mine, at_root, dst=1)
    assert at_root == (everybody if me == 1 else None)
    box = [mine]
    dist.broadcast_object_list(box, src=1)
    assert box == [everybody[1]]
    dist.scatter_object_list(box, everybody if me == 0 else None, src=0)
    assert box == [mine]


def check_coalesced() -> None:
    me, world = dist.get_rank(), len(ranks())
    tensors = [torch.full((k + 1,), float(me)) for k in range(3)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        assert torch.all(tensor == sum(ranks()))
    outputs = [torch.empty(world) for _ in range(3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for k, output in enumerate(outputs):
            all_gather_single(output, torch.tensor([float(me + k)]))
    manager.wait()
    for k, output in enumerate(outputs):
        assert output.tolist() == [r + k for r in ranks()]
    pieces = [torch.empty(1) for _ in range(3)]
    with dist.distributed_c10d._coalescing_manager():
        for piece in pieces:
            reduce_scatter_single(piece, torch.arange(world, dtype=torch.float32))
    assert all(piece.item() == me * world for piece in pieces)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(tensors[0], 0)
        dist.broadcast(tensors[1], 1)


def check_layouts() -> None:
    me, total = dist.get_rank(), sum(ranks())
    base = torch.full((4, 6), float(me))
    dist.all_reduce(base.t())  # transposed
    assert torch.all(base == total)
    base = torch.full((4, 6), float(me))
    dist.all_reduce(base[:, ::2])  # strided: every other column, nothing else touched
    assert torch.all(base[:, ::2] == total) and torch.all(base[:, 1::2] == me)
    mixed = torch.arange(6.0).view(2, 3) if me == 0 else torch.zeros(3, 2).t()
    dist.broadcast(mixed, 0)  # other strides on other ranks
    assert mixed.tolist() == [[0, 1, 2], [3, 4, 5]]
    scalar = torch.tensor(float(me))
    dist.all_reduce(scalar)
    assert scalar.item() == total and scalar.dim() == 0
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        empty = torch.empty((0, 3), dtype=dtype)
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.all_gather([torch.empty_like(empty) for _ in ranks()], empty)
        dist.reduce_scatter(torch.empty_like(empty), [empty for _ in ranks()])
        dist.all_to_all([torch.empty_like(empty) for _ in ranks()], [empty for _ in ranks()])
        works = [dist.isend(empty, (me + 1) % len(ranks()))]
        dist.recv(torch.empty_like(empty), (me - 1) % len(ranks()))
        works[0].wait()
    leaf = torch.full((3, 2), float(me)).t().requires_grad_()
    dist.all_reduce(leaf)
    assert torch.all(leaf == total) and leaf.is_leaf
    with torch.inference_mode():
        frozen = torch.full((2, 3), float(me)).t()
    dist.all_reduce(frozen)
    assert torch.all(frozen == total)
    conjugate = torch.full((3,), complex(me, 1.0), dtype=torch.complex64).conj()
    # dist.broadcast refuses conjugate views itself; C++ callers come straight here.
    dist.group.WORLD.broadcast([conjugate], dist.distributed_c10d.BroadcastOptions()).wait()
    assert torch.all(conjugate.resolve_conj() == torch.tensor(complex(0, -1)))
    chunks = torch.empty(len(ranks()) * 2)
    dist.all_gather(list(chunks.chunk(len(ranks()))), torch.full((2,), float(me)))
    assert chunks.tolist() == [float(r) for r in ranks() for _ in range(2)]


def check_groups() -> None:
    me, world = dist.get_rank(), len(ranks())
    last = dist.new_group([world - 2, world - 1])
    if me >= world - 2:
        tensor = torch.tensor([float(me)])
        dist.all_reduce(tensor, group=last)
        assert tensor.item() == 2 * world - 3
        assert dist.get_rank(last) == me - (world - 2) and dist.get_world_size(last) == 2
        dist.broadcast(tensor.fill_(me), src=world - 1, group=last)
        assert tensor.item() == world - 1
        dist.destroy_process_group(last)
        try:
            last.allreduce([tensor])
        except shanty.torch.CommunicationError as error:
            assert "destroyed" in str(error)
        else:
            raise AssertionError("a destroyed group still took an operation")
    pairs = [dist.new_group([0, r]) for r in range(1, world)]  # rank 0 is in all of them
    for r, pair in enumerate(pairs, start=1):
        if me in (0, r):
            tensor = torch.tensor([1.0])
            dist.all_reduce(tensor, group=pair)
            assert tensor.item() == 2
    alone = dist.new_group([0])
    if me == 0:
        dist.barrier(group=alone)
    everybody = dist.new_group()
    dist.barrier(group=everybody)
