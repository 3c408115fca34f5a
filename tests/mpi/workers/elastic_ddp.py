"""Trains a DistributedDataParallel of `elastic.ddp`; ranks are lost on the way.

Arguments: the kind of model (plain, parts), and who is lost when, as 13:1:bucket,…: in step 13 the
rank that began as rank 1. How: before the step, in the forward pass (buffers), in a bucket's
reduction, after the backward pass, in a reduction of the script, or while the others leave a lost
one behind (again). Each rank that comes to the end prints one line of JSON, and how far its losses
and parameters are from those of a training in this process alone, with the ranks that there were in
each step.
"""

import copy
import hashlib
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import shanty.torch
from shanty.collectives import operations, survivors

KIND = sys.argv[1]
LOSSES = [
    (int(at), int(who), how) for at, who, how in (w.split(":") for w in sys.argv[2].split(","))
]
RANKS = int(os.environ["WORLD_SIZE"])
EPOCHS, STEPS, BATCH = 4, 10, 4
COMPLETED = ("after", "script", "again")  # the lost rank's gradients count in that step
made = torch.Generator().manual_seed(5)
x = torch.randn(RANKS * STEPS * BATCH, 20, generator=made)
DATA = TensorDataset(x, x.square().mean(1, keepdim=True))


class Parts(nn.Module):
    """Has buffers, and a part that not all ranks use in each step."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1))
        self.other = nn.Linear(20, 1)

    def forward(self, x, turn):
        return self.net(x) + self.other(x) if turn % 3 == 0 else self.net(x)


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1))

    def forward(self, x, turn):
        return super().forward(x)


def build():
    torch.manual_seed(7)
    return Parts() if KIND == "parts" else Plain()


def optimize(model):
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def loss_of(model, x, y, turn):
    return (model(x, turn) - y).square().mean()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def lose(how):
    """End this process at once, or soon."""
    if how == "before":
        os._exit(1)
    elif how == "again":
        survivors.shrink = die
    elif how == "forward":
        operations.broadcast = die
    elif how in ("bucket", "script"):
        left = [2 if how == "bucket" else 10**9]
        real = operations.all_reduce

        def count(at, tensors, *rest):
            left[0] -= 1
            if left[0] == 0 or (how == "script" and tensors[0].numel() == 1 and tensors[0] == 1):
                (die if how == "bucket" else os._exit)(1)
            return real(at, tensors, *rest)

        operations.all_reduce = count


def train():
    dist.init_process_group("mpi")
    first = dist.get_rank()
    options = (
        {"find_unused_parameters": True} if KIND == "parts" else {"gradient_as_bucket_view": True}
    )
    model = DistributedDataParallel(build(), bucket_cap_mb=0.005, **options)
    shanty.torch.elastic.ddp(model)
    optimizer = optimize(model)
    sampler = DistributedSampler(DATA)
    loader = DataLoader(DATA, BATCH, sampler=sampler)
    losses, step = [], 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            step += 1
            mine = [how for at, who, how in LOSSES if (at, who) == (step, first)]
            for how in mine:
                lose(how)
            optimizer.zero_grad()
            loss = loss_of(model, x, y, step + first)
            loss.backward()
            if mine == ["after"]:
                os._exit(1)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            there = torch.ones(())
            dist.all_reduce(there)
            assert there == dist.get_world_size()
    dist.barrier()
    return first, model.module, optimizer, losses


def alone(first):
    """The same training in this process alone; the losses are those of the rank `first`."""
    model = build()
    optimizer = optimize(model)
    losses, step, there, shares = [], 0, list(range(RANKS)), {}
    for epoch in range(EPOCHS):
        for rank, who in enumerate(there):
            sampler = DistributedSampler(DATA, len(there), rank)
            sampler.set_epoch(epoch)
            shares[who] = list(DataLoader(DATA, BATCH, sampler=sampler))
        for batch in range(len(shares[first])):
            step += 1
            gone = {who for at, who, how in LOSSES if at == step}
            now = {who for at, who, how in LOSSES if at == step and how not in COMPLETED}
            there = [who for who in there if who not in now]
            copies = []
            for who in there:
                copies.append(copy.deepcopy(model))
                loss = loss_of(copies[-1], *shares[who][batch], step + who)
                loss.backward()
                if who == first:
                    losses.append(loss.item())
            for parameters in zip(
                model.parameters(), *(c.parameters() for c in copies), strict=True
            ):
                grads = [each.grad for each in parameters[1:] if each.grad is not None]
                parameters[0].grad = sum(grads) / len(there) if grads else None
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            there = [who for who in there if who not in gone]
    return model, losses


def difference(ours, theirs):
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


torch.set_num_threads(1)
first, model, optimizer, losses = train()
other, others = alone(first)
held = [*model.parameters()]
state = [each["momentum_buffer"] for each in optimizer.state_dict()["state"].values()]
made = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in [*held, *state]))
apart = max((a - b).abs().max().item() for a, b in zip(held, other.parameters(), strict=True))
place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
told = {
    "first": first, "rank": dist.get_rank(), "size": dist.get_world_size(), "place": place,
    "sum": made.hexdigest(), "steps": len(losses), "losses": difference(losses, others),
    "parameters": apart, "fall": losses[-1] / losses[0],
}  # fmt: skip
print(json.dumps(told), flush=True)
