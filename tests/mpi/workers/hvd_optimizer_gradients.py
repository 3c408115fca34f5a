"""Gradients that are not like others: sparse, missing, of parameters that come and go; Adasum.

See run_checks.py.
"""

from __future__ import annotations

from functools import partial

import torch
from checks import raised
from references import adasum
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam
from training import (
    STEPS,
    Cut,
    agree,
    alike,
    alone,
    batch,
    distributed,
    everything,
    mean_square,
    network,
    part,
    sgd,
    steps,
)

import shanty.torch as hvd

# ------------------------------------------------------------------------------- sparse


class Words(nn.Module):
    """Each row of a batch is made words of; those of one rank need not be those of another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.EmbeddingBag(30, 5, sparse=True)
        self.out = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embedding((x.abs() * 1000).long() % 30))


def optimizers(model: Words, kind: type[Optimizer], **options: object) -> list[Optimizer]:
    inner = kind(model.embedding.parameters(), lr=0.1), SGD(model.out.parameters(), lr=0.1)
    if not options:
        return list(inner)
    options.pop("plain", None)
    named = dict(model.named_parameters())
    return [hvd.DistributedOptimizer(each, list(named.items()), **options) for each in inner]


def fit(model: nn.Module, each: list[Optimizer], cut: Cut) -> None:
    for step in range(STEPS):
        for optimizer in each:
            optimizer.zero_grad()
        mean_square(model, *map(cut, batch(step))).backward()
        for optimizer in each:
            optimizer.step()


def check_sparse() -> None:
    ways = ({"plain": True}, {"sparse_as_dense": True}, {"groups": 1})
    for kind in (SGD, SparseAdam):
        want = Words()
        fit(want, optimizers(want, kind), everything)
        for way in (*ways, {"compression": hvd.Compression.fp16, "sparse_as_dense": True}):
            got = Words()
            fit(got, optimizers(got, kind, **way), part)
            assert got.embedding.weight.grad.is_sparse
            agree(got, want, 1e-2 if "compression" in way else 1e-5)


def check_sparse_missing_on_one_rank() -> None:
    """Known once there was one: the first step has it on all ranks."""
    got, want = Words(), Words()
    ours, plain = optimizers(got, SGD, plain=True), optimizers(want, SGD)

    def loss(model: Words, x: Tensor, y: Tensor, uses: bool) -> Tensor:
        return mean_square(model if uses else model.out, x if uses else x[:, :5], y)

    for step in range(STEPS):
        left_out = 0 if step else -1
        for each in (*ours, *plain):
            each.zero_grad()
        x, y = batch(step)
        loss(got, part(x), part(y), hvd.rank() != left_out).backward()
        for rank in range(hvd.size()):
            share = loss(want, part(x, rank), part(y, rank), rank != left_out) / hvd.size()
            share.backward()
        for each in (*ours, *plain):
            each.step()
    agree(got, want)


# ------------------------------------------------------------------ missing, come and gone


class Branches(nn.Module):
    """Each rank uses one branch, and all use the trunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.trunk = nn.Linear(12, 6)
        self.branches = nn.ModuleList(nn.Linear(6, 1) for _ in range(hvd.size()))

    def forward(self, x: Tensor, branch: int) -> Tensor:
        return self.branches[branch](self.trunk(x).tanh())


def check_missing_on_some_ranks() -> None:
    for options in ({}, {"groups": 2}, {"groups": 1}, {"backward_passes_per_step": 2}):
        got, want = Branches(), Branches()
        ours = distributed(got, **options)
        plain = sgd(list(want.parameters()))
        for step in range(STEPS):
            ours.zero_grad()
            plain.zero_grad()
            x, y = batch(step)
            (got(part(x), hvd.rank()) - part(y)).square().mean().backward()
            for rank in range(hvd.size()):
                share = (want(part(x, rank), rank) - part(y, rank)).square().mean() / hvd.size()
                share.backward()
            ours.step()
            plain.step()
        agree(got, want)


def check_frozen() -> None:
    """What is frozen stays as it is; what is thawed later is trained from then on."""

    def frozen() -> nn.Module:
        model = network()
        model[0].requires_grad_(False)
        return model

    def train(model: nn.Module, optimizer: Optimizer, cut: Cut) -> None:
        steps(model, optimizer, cut, numbers=(0,))
        assert model[0].weight.grad is None
        model[0].requires_grad_(True)
        model[4].requires_grad_(False)
        steps(model, optimizer, cut, numbers=(1, 2, 3))

    alike(train, frozen)


def check_added_later() -> None:
    def train(model: nn.Module, optimizer: Optimizer, cut: Cut) -> None:
        steps(model, optimizer, cut, numbers=(0,))
        model[4].zero_grad()
        optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 0.02})
        steps(model, optimizer, cut, numbers=(1, 2))

    alike(train, make=lambda parameters: sgd(parameters[:4]))


def check_strides_and_dimensions() -> None:
    """Gradients that are not contiguous, empty, or of no dimension."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
            self.turned = nn.Parameter(torch.randn(4, 6).t())
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.empty = nn.Parameter(torch.empty(0, 3))

        def forward(self, x: Tensor) -> Tensor:
            images = x.view(-1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
            found = self.conv(images).flatten(1) @ self.turned.t()
            return (found.sum(1, keepdim=True) + self.empty.sum()) * self.scale

    assert not Odd().turned.is_contiguous()
    alike(model=Odd, make=partial(SGD, lr=0.01))


# ------------------------------------------------------------------------------- Adasum


def check_adasum() -> None:
    """State such as momentum is each rank's own, so every rank's optimizer is played here."""
    if hvd.size() & (hvd.size() - 1):
        return
    # Without that eps Adam makes steps of full length out of what rounding leaves of a zero.
    kinds = {SGD: {"lr": 0.05, "momentum": 0.9}, Adam: {"lr": 0.05, "eps": 1e-3}}
    for kind, options in kinds.items():
        model = network()
        optimizer = hvd.DistributedOptimizer(
            kind(model.parameters(), **options), model.named_parameters(), op=hvd.Adasum
        )
        assert isinstance(optimizer, kind)
        played = [network() for _ in range(hvd.size())]
        plain = [kind(each.parameters(), **options) for each in played]
        for step in range(STEPS):
            steps(model, optimizer, numbers=(step,))
            before = [each.detach().clone() for each in played[0].parameters()]
            for rank, (each, inner) in enumerate(zip(played, plain, strict=True)):
                steps(each, inner, lambda whole, rank=rank: part(whole, rank), numbers=(step,))
            parameters = [list(each.parameters()) for each in played]
            for i, start in enumerate(before):
                changes = [each[i].detach() - start for each in parameters]
                combined = start + torch.from_numpy(adasum(changes)).float()
                for each in parameters:
                    each[i].data.copy_(combined)
            agree(model, played[0])


def check_adasum_of_three() -> None:
    """It is refused, and the parameters are as they were before the step."""
    if hvd.size() & (hvd.size() - 1):
        model, same = network(), network()
        optimizer = distributed(model, op=hvd.Adasum)
        mean_square(model, *map(part, batch(0))).backward()
        raised(NotImplementedError, optimizer.step)
        agree(model, same, 0.0)


def check_adasum_options() -> None:
    if hvd.size() & (hvd.size() - 1):
        return
    model = network()
    frozen = model[0].weight.requires_grad_(False).clone()
    optimizer = hvd.DistributedOptimizer(
        SGD(model.parameters(), lr=0.1),
        compression=hvd.Compression.fp16,
        op=hvd.Adasum,
        backward_passes_per_step=2,
    )
    optimizer.synchronize()
    seen = []

    def closure() -> Tensor:
        seen.append(mean_square(model, *map(part, batch(0))))
        seen[-1].backward()
        return seen[-1]

    assert optimizer.step(closure) is seen[-1]
    assert torch.equal(model[0].weight, frozen)
    everywhere = hvd.allgather(model[4].weight.detach().view(1, -1), name="same")
    assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))
    raised(AssertionError, optimizer.skip_synchronize, "Adasum")
    some = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.ProcessSet([0])
    refused = raised(
        NotImplementedError,
        lambda: hvd.DistributedOptimizer(
            SGD(network().parameters(), lr=0.1), op=hvd.Adasum, process_set=some
        ),
    )
    assert "process set" in refused
    if hvd.size() > 2:
        hvd.remove_process_set(some)


# ------------------------------------------------------------------------------ mistakes


def check_wrong_arguments() -> None:
    model = network()
    named = list(model.named_parameters())

    def refused(words: str, **options: object) -> None:
        inner = SGD(model.parameters(), lr=0.1)
        raised(ValueError, lambda: hvd.DistributedOptimizer(inner, **options), words)

    refused("pairs", named_parameters=model.parameters())
    refused("twice", named_parameters=[*named, named[0]])
    refused("no name", named_parameters=named[1:])
    refused("1 or more", backward_passes_per_step=0)
    refused("1 or more", backward_passes_per_step=-1)
    refused("Average", op=hvd.Sum, gradient_predivide_factor=2.0)
    refused("groups", groups=0)
    refused("groups", groups=-1)
    refused("groups", groups=[["weight"]])
    refused("groups", groups=[[model[0].weight], [model[0].weight]])
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), lr=0.1))
    raised(ValueError, lambda: optimizer.set_backward_passes_per_step(0), "1 or more")


def check_one_rank_has_another_shape() -> None:
    """The error comes on every rank, out of step(); the optimizer can be used after it."""
    model = network()
    if hvd.rank() == 1:
        model[4] = nn.Linear(8, 2)
    optimizer = distributed(model)
    mean_square(model, *map(part, batch(0))).backward()
    said = raised(hvd.HorovodInternalError, optimizer.step)
    assert ("4.weight" in said and "(2, 8)" in said) or ("4.bias" in said and "(2)" in said), said
    same = network()
    again = distributed(same)
    steps(same, again)
    agree(same, alone())
