"""What scripts do with a DistributedOptimizer between its steps, and what stays of the user's.

See run_checks.py.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections import Counter
from functools import partial

import torch
from checks import raised
from torch import Tensor, nn
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


def check_clipped() -> None:
    def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, cut: Cut) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            mean_square(model, *map(cut, batch(step))).backward()
            if cut is everything:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                continue
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()

    alike(clipped)


def check_synchronized_twice() -> None:
    model = network()
    optimizer = distributed(model)
    mean_square(model, *map(part, batch(0))).backward()
    optimizer.synchronize()
    before = [each.grad.clone() for each in model.parameters()]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
    sentence = (
        "optimizer.step() called without optimizer.skip_synchronize() context after "
        "optimizer.synchronize()"
    )
    assert [sentence in str(each.message) for each in seen] == [True]
    for was, parameter in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(was, parameter.grad)


def check_zero_grad_too_early() -> None:
    for groups in (None, 2):
        model = network()
        optimizer = distributed(model, groups=groups)
        mean_square(model, *map(part, batch(0))).backward()
        raised(AssertionError, optimizer.zero_grad, "step()")
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert all(torch.all(each.grad == 0) for each in model.parameters())
        optimizer.zero_grad()
        assert all(each.grad is None for each in model.parameters())


def check_gradient_replaced() -> None:
    model = network()
    optimizer = distributed(model)
    mean_square(model, *map(part, batch(0))).backward()
    model.zero_grad()  # nobody can tell the optimizer
    raised(AssertionError, optimizer.step, "0.weight")
    steps(model, optimizer)


def check_gradient_with_a_graph() -> None:
    model = network()
    optimizer = distributed(model)
    loss = mean_square(model, *map(part, batch(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raised(AssertionError, lambda: loss.backward(create_graph=True), "create_graph")
    model.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())  # begins anew
    steps(model, optimizer)


def check_autocast() -> None:
    def cast(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (model(x).float() - y).square().mean()

    alike(lambda *given: steps(*given, loss=cast), tolerance=2e-2)


def check_grad_scaler() -> None:
    """Where one rank overflows, all leave out the step."""
    got, want = network(), network()
    optimizer = distributed(got)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_square(got, *map(part, batch(step)))
        scaler.scale(loss * (float("inf") if step == 1 and hvd.rank() == 0 else 1)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    steps(want, sgd(list(want.parameters())), everything, numbers=(0, 2, 3))
    agree(got, want)
    assert set(hvd.allgather_object(scaler.get_scale())) == {512.0}


def check_grad_scaler_too_early() -> None:
    """It would unscale gradients while they are being reduced: the error has the two lines."""
    for fused in (False, True):
        model = network()
        optimizer = distributed(model, partial(torch.optim.SGD, lr=0.1, fused=fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(mean_square(model, *map(part, batch(0)))).backward()
        raised(AssertionError, lambda: scaler.step(optimizer), "optimizer.synchronize()")  # noqa: B023
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    adasum = distributed(network(), op=hvd.Adasum)
    raised(AssertionError, lambda: scaler.step(adasum), "bfloat16")


def check_adversaries() -> None:
    """Two optimizers whose parameters have the same names, and a loss of one that leaves gradients
    in the other: dropped by the optimizer, by the model, or by the parameters."""
    for dropped_by in ("optimizer", "model", "parameters"):
        found = []
        for cut in (part, everything):
            torch.manual_seed(3)
            maker, judge = nn.Linear(12, 12), nn.Linear(12, 1)
            both = [sgd(list(each.parameters())) for each in (maker, judge)]
            if cut is part:
                both = [
                    hvd.DistributedOptimizer(one, model.named_parameters(), **more)
                    for one, model, more in (
                        (both[0], maker, {}),
                        (both[1], judge, {"backward_passes_per_step": 2}),
                    )
                ]
            for step in range(STEPS):
                for model, optimizer, sign in ((judge, both[1], 1), (maker, both[0], -1)):
                    if dropped_by == "parameters":
                        for each in model.parameters():
                            each.grad = None
                    else:
                        (model if dropped_by == "model" else optimizer).zero_grad()
                    x = cut(batch(step)[0])
                    if model is judge:  # two backward passes, as in most scripts
                        judge(x).square().mean().backward()
                        judge(maker(x).detach()).mean().backward()
                    else:
                        (sign * judge(maker(x)).mean()).backward()
                    optimizer.step()
            found.append(nn.Sequential(maker, judge))
        agree(*found)


def check_one_after_the_other() -> None:
    """The next optimizer of the same parameters takes them over, even if the former lives on."""
    model = network()
    former = distributed(model)
    mean_square(model, *map(part, batch(0))).backward()
    later = distributed(model)
    model.zero_grad()
    steps(model, later)
    agree(model, alone())
    raised(ValueError, former.step, "taken over 6 parameters", "0.weight", "training.py")


def check_closure() -> None:
    model = network()
    optimizer = distributed(model)
    for step in range(STEPS):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model, *map(part, batch(step)))
            loss.backward()
            return loss

        assert optimizer.step(closure).ndim == 0
    agree(model, alone())


def check_lbfgs() -> None:
    """It decides by the loss how often to call the closure: all ranks must decide alike."""

    calls: Counter[Cut] = Counter()

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, cut: Cut) -> None:
        def closure() -> Tensor:
            calls[cut] += 1
            optimizer.zero_grad()
            loss = mean_square(model, *map(cut, batch(0)))
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    lbfgs = partial(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe")
    alike(fit, lambda: network().double(), lbfgs, 1e-6)
    assert calls[part] == calls[everything], calls


# ------------------------------------------------------------ the user's optimizer stays his


def check_every_optimizer() -> None:
    special = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}
    names = {k for k, v in vars(torch.optim).items() if isinstance(v, type)}
    kinds = [getattr(torch.optim, name) for name in sorted(names - special)]
    kinds = [each for each in kinds if issubclass(each, torch.optim.Optimizer)]
    assert len(kinds) >= 11, kinds
    for kind in kinds:
        alike(make=kind, tolerance=1e-4)
    matrices = nn.Sequential(nn.Linear(12, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))
    if hasattr(torch.optim, "Muon"):
        # it computes in bfloat16
        alike(model=lambda: copy.deepcopy(matrices), make=torch.optim.Muon, tolerance=2e-2)


class Own(torch.optim.SGD):
    """An optimizer of the user's, which cannot be made from parameter groups alone."""

    def __init__(self, parameters: object, *, needed: int) -> None:
        super().__init__(parameters, lr=0.1)
        self.needed = needed
        self.made = 0

    def zero_grad(self) -> None:
        super().zero_grad()

    def step(self) -> None:
        self.made += 1
        super().step()


def check_the_users_class() -> None:
    model = network()
    inner = Own(model.parameters(), needed=3)
    optimizer = hvd.DistributedOptimizer(inner)
    kind = type(optimizer)
    assert isinstance(optimizer, Own) and kind is not Own and kind.__base__ is Own
    assert (kind.__name__, kind.__doc__) == ("Own", Own.__doc__)
    assert optimizer.__module__ == hvd.DistributedOptimizer.__module__
    assert repr(optimizer) == repr(inner)
    assert optimizer.needed == 3 and optimizer.param_groups is inner.param_groups
    steps(model, optimizer)
    assert optimizer.made == STEPS
    assert optimizer.op == hvd.Average and optimizer.process_set is hvd.global_process_set
    assert (optimizer.gradient_predivide_factor, optimizer.sparse_as_dense) == (1.0, False)
    raised(ValueError, lambda: hvd.DistributedOptimizer(optimizer), "already")


def check_step_hooks_run_once() -> None:
    model = network()
    inner = sgd(list(model.parameters()))
    seen: list[str] = []
    inner.register_step_pre_hook(lambda *_: seen.append("inner"))
    optimizer = hvd.DistributedOptimizer(inner)
    optimizer.register_step_post_hook(lambda *_: seen.append("outer"))
    steps(model, optimizer, numbers=(0,))
    assert seen == ["inner", "outer"], seen
    optimizer.load_state_dict(optimizer.state_dict())
    steps(model, optimizer, numbers=(1,))
    assert seen == ["inner", "outer"] * 2, seen


def check_state_dict() -> None:
    adam = torch.optim.Adam
    first, second = network(), network()
    optimizer = distributed(first, adam)
    steps(first, optimizer, numbers=range(2))
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    plain = adam(second.parameters())
    assert saved[1].keys() == plain.state_dict().keys()
    second.load_state_dict(saved[0])
    plain.load_state_dict(copy.deepcopy(saved[1]))  # before it is wrapped; the state stays
    del optimizer
    steps(second, hvd.DistributedOptimizer(plain), numbers=range(2, STEPS))
    agree(second, alone(adam))
    third = network()
    third.load_state_dict(saved[0])
    wrapped = distributed(third, adam)
    wrapped.load_state_dict(saved[1])
    steps(third, wrapped, numbers=range(2, STEPS))
    agree(third, alone(adam))


def check_schedulers() -> None:
    schedule = torch.optim.lr_scheduler
    for early in (True, False):
        got, want = network(), network()
        inner = sgd(list(got.parameters()))
        first = schedule.StepLR(inner, 1, 0.5) if early else None
        optimizer = hvd.DistributedOptimizer(inner)
        plain = sgd(list(want.parameters()))
        runs = (
            (got, optimizer, part, first or schedule.StepLR(optimizer, 1, 0.5)),
            (want, plain, everything, schedule.StepLR(plain, 1, 0.5)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for model, each, cut, scheduler in runs:
                for step in range(STEPS):
                    steps(model, each, cut, numbers=(step,))
                    scheduler.step()
        agree(got, want)


def check_made_again() -> None:
    """An optimizer that is no more leaves no hooks; one that is there ends with its model."""
    model = network()
    for _ in range(2):
        optimizer = distributed(model)
        steps(model, optimizer, numbers=(0,))
    seen = weakref.ref(model[0].weight)
    hvd.barrier()
    del model, optimizer
    gc.collect()
    assert seen() is None


def check_two_at_once() -> None:
    model = network()
    front, back = nn.Sequential(*model[:2]), nn.Sequential(*model[2:])
    optimizers = [
        hvd.DistributedOptimizer(
            sgd(list(each.parameters())),
            [(f"{name}.{key}", value) for key, value in each.named_parameters()],
        )
        for name, each in (("front", front), ("back", back))
    ]
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        mean_square(model, *map(part, batch(step))).backward()
        for each in optimizers:
            each.step()
    agree(model, alone())


def check_one_that_takes_over() -> None:
    """Its parameters are another's, too: that one says who reduces them; the new one trains."""
    model = network()
    first = hvd.DistributedOptimizer(sgd(model[0].parameters()), model[0].named_parameters())
    both = distributed(model)
    mean_square(model, *map(part, batch(0))).backward()
    raised(
        ValueError, first.step,
        "created later at ", "training.py:", "has taken over 2 parameters of this one (weight",
    )  # fmt: skip
    both.step()
    model.zero_grad()
    steps(model, both, numbers=range(1, STEPS))
    agree(model, alone())


def check_after_a_shutdown() -> None:
    """No step of one rank alone passes for one of all."""
    model, untouched = network(), network()
    optimizer = distributed(model)
    hvd.shutdown()
    raised(
        hvd.HorovodInternalError, lambda: mean_square(model, *map(everything, batch(0))).backward()
    )
    raised(hvd.HorovodInternalError, optimizer.step)
    agree(model, untouched, 0.0)
    hvd.init()
    optimizer.load_state_dict(optimizer.state_dict())  # begins anew
    steps(model, optimizer)
    agree(model, alone())
