"""What people train with, over the `mpi` backend, against one process on the whole batch.

Each rank trains on its part of a batch, and every rank also trains a copy of the model alone on
the whole of it (see training.py). Started by mpirun through ../test_torch_training.py, with a
folder for checkpoints.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from checks import checks_of, run
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from training import STEPS, TOLERANCE, alone, batch, everything, network, steps

import shanty.torch  # noqa: F401

FOLDER = Path(sys.argv[1])
MAIN = __name__ == "__main__"


def adam(parameters: Iterable[nn.Parameter], **options: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, **options)


def agree(found: Iterable[Tensor]) -> None:
    """These parameters are those after one process has trained on everything."""
    for one, other in zip(found, alone(adam).parameters(), strict=True):
        got = one.full_tensor() if isinstance(one, DTensor) else one
        torch.testing.assert_close(got.detach(), other.detach(), rtol=TOLERANCE, atol=TOLERANCE)


def mesh(name: str = "all") -> object:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(name,))


def check_ddp() -> None:
    model = DistributedDataParallel(network())
    steps(model, adam(model.parameters()))
    agree(model.parameters())


def check_ddp_join() -> None:
    """Ranks with unequal inputs: those that are through shadow the others."""
    model = DistributedDataParallel(network())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        for step in range(2 + dist.get_rank()):
            optimiser.zero_grad()
            model(batch(step)[0]).square().mean().backward()
            optimiser.step()
    if dist.get_rank() == dist.get_world_size() - 1:
        assert all(torch.isfinite(each).all() for each in model.parameters())
    dist.barrier()


def check_zero_redundancy() -> None:
    model = DistributedDataParallel(network())
    optimiser = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    steps(model, optimiser)
    agree(model.parameters())
    optimiser.consolidate_state_dict(to=0)


def check_fsdp() -> None:
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    steps(model, adam(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        agree(model.parameters())


def sharded() -> nn.Module:
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh())
    return fully_shard(model, mesh=mesh())


def check_fsdp2() -> None:
    model = sharded()
    steps(model, adam(model.parameters()))
    agree(model.parameters())


def check_tensor_parallel() -> None:
    if 16 % dist.get_world_size():
        return
    model = network()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh("tp"), plan)
    steps(model, adam(model.parameters(), foreach=False), everything)
    agree(model.parameters())


def check_dtensor() -> None:
    made = torch.Generator().manual_seed(1)
    a, b = torch.randn(12, 8, generator=made), torch.randn(8, 12, generator=made)
    rows, columns = (
        distribute_tensor(a, mesh(), [Shard(0)]),
        distribute_tensor(b, mesh(), [Shard(1)]),
    )
    product = rows @ columns.redistribute(mesh(), [Replicate()])
    torch.testing.assert_close(product.full_tensor(), a @ b)
    # One by one: torch 2.7 adds a part of a sum to a part of a mean.
    torch.testing.assert_close(rows.sum().full_tensor(), a.sum())
    torch.testing.assert_close(columns.mean().full_tensor(), b.mean())
    moved = rows.redistribute(mesh(), [Shard(1)])
    torch.testing.assert_close(moved.full_tensor(), a)


def check_two_dimensional_mesh() -> None:
    world = dist.get_world_size()
    if world != 4 or torch.__version__.startswith("2.7."):  # its FSDP2 wants events of a GPU here
        return
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = network()
    fully_shard(model, mesh=grid)
    steps(model, adam(model.parameters()))
    agree(model.parameters())


def check_pipeline() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    layers = [nn.Linear(6, 6) for _ in range(world)]
    reference = nn.Sequential(*copy.deepcopy(layers))
    stage = PipelineStage(layers[rank], rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    made = torch.Generator().manual_seed(5)
    x, y = torch.randn(8, 6, generator=made), torch.randn(8, 6, generator=made)
    out = schedule.step(*([x] if rank == 0 else []), target=y if rank == world - 1 else None)
    nn.functional.mse_loss(reference(x), y).backward()
    torch.testing.assert_close(layers[rank].weight.grad, reference[rank].weight.grad)
    if rank == world - 1:
        torch.testing.assert_close(out, reference(x))


def check_functional() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    total = functional.all_reduce(torch.full((3,), float(rank)), "sum", group)
    assert torch.all(functional.wait_tensor(total) == sum(range(world)))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    assert gathered.tolist() == [float(r) for r in range(world) for _ in range(2)]
    piece = functional.reduce_scatter_tensor(torch.arange(world * 2.0), "sum", 0, group)
    assert piece.tolist() == [2.0 * rank * world, (2.0 * rank + 1) * world]
    sizes = [1] * world
    swapped = functional.all_to_all_single(
        torch.arange(world * 1.0) + 10 * rank, sizes, sizes, group
    )
    assert swapped.tolist() == [10.0 * r + rank for r in range(world)]
    last = functional.broadcast(torch.tensor([float(rank)]), world - 1, group)
    assert last.item() == world - 1


def check_compile() -> None:
    group = dist.group.WORLD

    def step(x: Tensor) -> Tensor:
        return functional.all_reduce((x * 2).sin(), "sum", group) + 1

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    x = torch.arange(8.0) + dist.get_rank()
    want = sum((2 * (torch.arange(8.0) + r)).sin() for r in range(dist.get_world_size())) + 1
    torch.testing.assert_close(compiled(x), want)
    model = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    steps(model, adam(model.parameters()))
    agree(model.parameters())


def check_checkpoint() -> None:
    for name in ("sync", "async"):
        model = sharded()
        optimiser = adam(model.parameters())
        steps(model, optimiser)
        state, path = {"model": get_model_state_dict(model)}, str(FOLDER / name)
        if name == "sync":
            dcp.save(state, checkpoint_id=path)
        else:
            waiting = dcp.async_save(
                state, checkpoint_id=path, process_group=dist.new_group(backend="gloo")
            )
            steps(model, optimiser, numbers=(STEPS,))  # training goes on meanwhile
            waiting.result()


def check_resume() -> None:
    """What check_checkpoint left in FOLDER, perhaps on another number of ranks."""
    for name in ("sync", "async"):
        model = sharded()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        state = {"model": get_model_state_dict(model)}
        dcp.load(state, checkpoint_id=str(FOLDER / name))
        set_model_state_dict(model, state["model"])
        agree(model.parameters())


if MAIN:
    dist.init_process_group("mpi")
    chosen = sys.argv[2:]
    every = checks_of(dict(globals()))
    run([each for each in every if not chosen or each.__name__ in chosen], dist.barrier)
    dist.destroy_process_group()
