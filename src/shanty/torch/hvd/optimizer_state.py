"""An optimizer's options and state, taken apart into what is pickled and tensors to be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Shapes = list[list[tuple[int, ...]]]
"""Of the parameters in each of an optimizer's groups."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a tensor that is sent by itself.

    shape, dtype: of it. beside: whether it is on the device of its parameter, and not elsewhere
    as counters are, on the CPU.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    beside: bool


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor that is sent as a part of the object: a sparse one."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Content:
    """The content of an optimizer, with slots where its tensors are.

    options: of each group, without its parameters. state: by the number of the parameter, counted
    through all groups. other: state that belongs to no parameter, by its key.
    """

    options: list[dict[str, Any]]
    state: dict[int, Any]
    other: dict[Any, Any]


def shapes(optimizer: Optimizer) -> Shapes:
    """Return what optimizers must have in common for one to take the other's state."""
    return [[tuple(each.shape) for each in group["params"]] for group in optimizer.param_groups]


def spell(of: Shapes) -> str:
    """Shapes in words."""
    groups = [f"{len(each)} ({sum(map(_count, each))} numbers)" for each in of]
    return f"{len(of)} group{'s' * (len(of) != 1)} of {', '.join(groups)} parameters"


def take(optimizer: Optimizer) -> tuple[Content, list[Tensor]]:
    """The content, which can be pickled, and the tensors in the order of their slots."""
    tensors: list[Tensor] = []
    params = _params(optimizer)

    def parted(thing: Any, beside: Tensor | None) -> Any:
        if not isinstance(thing, Tensor):
            return _mapped(thing, lambda _, inner: parted(inner, beside), None)
        if thing.layout is not torch.strided:
            return _Whole(thing.detach().cpu())
        tensors.append(thing)
        near = beside is not None and thing.device == beside.device
        return _Slot(tuple(thing.shape), thing.dtype, near)

    options = [
        {key: parted(value, None) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    state = {
        number: parted(optimizer.state[param], param)
        for number, param in enumerate(params)
        if param in optimizer.state
    }
    other = {
        key: parted(value, None)
        for key, value in dict[Any, Any](optimizer.state).items()
        if not isinstance(key, Tensor)
    }
    return Content(options, state, other), tensors


def put(optimizer: Optimizer, content: Content) -> list[Tensor]:
    """Make the optimizer's content this one; returns the tensors that are to be filled, in the
    order of their slots. Tensors of the right shape and type that are there stay.
    """
    tensors: list[Tensor] = []

    def whole(thing: Any, here: Any, beside: Tensor | None) -> Any:
        if isinstance(thing, _Whole):
            return thing.tensor.to(beside.device if beside is not None else "cpu")
        if not isinstance(thing, _Slot):
            return _mapped(thing, lambda old, inner: whole(inner, old, beside), here)
        if not _fits(here, thing):
            here = _room(thing, beside)
        tensors.append(here)
        return here

    for group, options in zip(optimizer.param_groups, content.options, strict=True):
        for key, value in options.items():
            group[key] = whole(value, group.get(key), None)
    for number, param in enumerate(_params(optimizer)):
        if number in content.state:
            optimizer.state[param] = whole(content.state[number], optimizer.state[param], param)
        else:
            optimizer.state.pop(param, None)
    for key, value in content.other.items():
        optimizer.state[key] = whole(value, optimizer.state.get(key), None)
    return tensors


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _mapped(thing: Any, each: Callable[[Any, Any], Any], here: Any) -> Any:
    """A container with `each` applied to what is in it, and to what `here` has in that place."""
    if isinstance(thing, dict):
        old = here if isinstance(here, dict) else {}
        return {key: each(old.get(key), value) for key, value in thing.items()}
    if type(thing) in (list, tuple):
        there = list(here) if type(here) in (list, tuple) else []
        there += [None] * (len(thing) - len(there))
        return type(thing)(each(old, value) for old, value in zip(there, thing, strict=False))
    return thing


def _fits(here: Any, slot: _Slot) -> bool:
    return (
        isinstance(here, Tensor)
        and here.layout is torch.strided
        and (tuple(here.shape), here.dtype) == (slot.shape, slot.dtype)
    )


def _room(slot: _Slot, beside: Tensor | None) -> Tensor:
    if beside is None or not slot.beside:
        return torch.empty(slot.shape, dtype=slot.dtype)
    if tuple(beside.shape) == slot.shape:  # in the same memory format
        return torch.empty_like(beside, dtype=slot.dtype, requires_grad=False)
    return torch.empty(slot.shape, dtype=slot.dtype, device=beside.device)


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
