"""How a user's optimizer becomes a distributed one that is still an instance of its class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import new_class
from typing import Any, TypeVar

import torch
from torch import Tensor

Template = TypeVar("Template", bound=torch.optim.Optimizer)

_MODULE = "shanty.torch.hvd.optimizer"  # Horovod's scripts compare it with DistributedOptimizer's
_NOT_TAKEN = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__"})
_INSTANCE_OF_ITS_OWN = frozenset({"step"})  # a learning rate scheduler leaves its patch there


def wrap(template: type[Template], optimizer: torch.optim.Optimizer) -> Template:
    """A new optimizer whose class is a subclass of `optimizer`'s with the methods of `template`.

    It has the name of the user's class and its direct base is that class, as scripts expect of
    Horovod's. Parameter groups, state and hooks are the same objects as those of `optimizer`,
    so what was done to it before (a scheduler, a restored state) is not lost. `template` finds
    the user's class in `self._user_class`.
    """
    user = type(optimizer)
    if hasattr(user, "_user_class"):
        raise ValueError(f"This {user.__name__} is a DistributedOptimizer already.")
    methods = {name: each for name, each in vars(template).items() if name not in _NOT_TAKEN}
    methods |= {"__module__": _MODULE, "__qualname__": user.__qualname__, "__doc__": user.__doc__}
    methods["_user_class"] = user
    made: Any = new_class(user.__name__, (user,), exec_body=lambda body: body.update(methods))
    # PyTorch puts a wrapper around `step` that calls the optimizer's hooks. The user's has it.
    made.step.hooked = True
    found: Template = made.__new__(made)
    attributes = vars(optimizer).items()
    vars(found).update({k: v for k, v in attributes if k not in _INSTANCE_OF_ITS_OWN})
    return found


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The name of each parameter, which must be the same on all ranks.

    Raises ValueError where names are no pairs, are not unique, or do not cover all parameters.
    """
    if named_parameters is None:
        return dict(places(optimizer))
    named = list(named_parameters)
    if any(not isinstance(each, tuple) for each in named):
        raise ValueError(
            "named_parameters: needs pairs of a name and a parameter, "
            "such as model.named_parameters() gives."
        )
    twice = [name for name, often in Counter(name for name, _ in named).items() if often > 1]
    if twice:
        raise ValueError(f"named_parameters: these names are there twice: {', '.join(twice)}.")
    names = {parameter: name for name, parameter in sorted(named, key=lambda each: each[0])}
    without = [place for parameter, place in places(optimizer) if parameter not in names]
    if without:
        raise ValueError(
            f"named_parameters: {len(without)} parameters of the optimizer have no name there: "
            f"{', '.join(place.removeprefix('allreduce.noname.') for place in without)} "
            "(parameter group.position)."
        )
    return names


def places(optimizer: torch.optim.Optimizer) -> Iterable[tuple[Tensor, str]]:
    """Every parameter, and the name that it has where it was given none."""
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            yield parameter, f"allreduce.noname.{i}.{j}"
