"""Broadcasts of whole models, optimizers and Python objects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from shanty.collectives import objects, process_sets
from shanty.collectives.objects import broadcast_object
from shanty.torch.hvd import agreement, ops
from shanty.torch.hvd.calls import synchronize

__all__ = ["allgather_object", "broadcast_object"]
__all__ += ["broadcast_optimizer_state", "broadcast_parameters"]

_Named = Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


def broadcast_parameters(params: _Named, root_rank: int) -> None:
    """Give all ranks the tensors of the rank `root_rank`, in place.

    params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`; or a list
    or dict of tensors. They must have the same names and shapes on all ranks. What is None in it
    is left alone.
    Raises ValueError for anything else.
    """
    handles = [
        ops.broadcast_async_(tensor, root_rank, name) for name, tensor in _named_tensors(params)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all ranks the state and the options of the optimizer of the rank `root_rank`.

    What other ranks lack of the state (momentum, for example) is made there; where the root has
    none either, only the options are sent, and no step is taken to make it. Parameters of an
    optimizer without state get zeros for gradients where they have none. model: tells which of
    them have sparse ones.
    Raises ValueError, on all ranks, for LBFGS and where the ranks' optimizers have other
    parameters, or the same ones in another order.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "The state of torch.optim.LBFGS cannot be broadcast: its history does not belong to "
            "single parameters. Broadcast the parameters only, or use another optimizer."
        )
    _give_gradients(optimizer, model)
    is_root = process_sets.current().topology.rank == root_rank
    shapes = _shapes(optimizer)
    values = [agreement.digest(each) for each in _params(optimizer)]
    here = shapes, values
    expected, theirs = broadcast_object(here, root_rank, "optimizer.shapes")
    reordered = values != theirs and sorted(values) == sorted(theirs)
    agrees = torch.tensor([shapes == expected and not reordered])
    others = (~ops.allgather(agrees, "optimizer.agreement")).nonzero().flatten().tolist()
    if others:
        raise ValueError(
            f"The optimizers of ranks {others} have other parameters than that of rank "
            f"{root_rank}, which has {_spell(expected)}; here there are "
            f"{_spell(shapes)}{', in another order' if reordered else ''}."
        )
    content, tensors = _take(optimizer) if is_root else (None, [])
    content = broadcast_object(content, root_rank, "optimizer.content")
    if not is_root:
        tensors = _put(optimizer, content)
    broadcast_parameters(
        [(f"optimizer.state.{number}", tensor) for number, tensor in enumerate(tensors)], root_rank
    )


def _give_gradients(optimizer: Optimizer, model: torch.nn.Module | None) -> None:
    """Make what scripts find after Horovod's broadcast, which takes a step to make a state."""
    if optimizer.state:
        return
    modules = model.modules() if model is not None else ()
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    tables = {each.weight for each in modules if isinstance(each, kinds) and each.sparse}
    always = isinstance(optimizer, torch.optim.SparseAdam)
    tables = tables if isinstance(optimizer, torch.optim.SGD) else set()
    for each in _params(optimizer):
        if each.requires_grad and each.grad is None:
            zeros = torch.zeros_like(each, requires_grad=False)
            each.grad = zeros.to_sparse() if always or each in tables else zeros


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, in their order; copies by pickle.

    obj: anything that can be pickled (by cloudpickle, where it is installed). name: the same on
    all ranks, where several threads do this at a time.
    """
    return objects.allgather_object(obj, name)


def _named_tensors(params: Any) -> list[tuple[str | None, Tensor]]:
    if isinstance(params, Mapping):
        pairs: list[tuple[Any, Any]] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, Tensor):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(
            "broadcast_parameters takes model.state_dict(), model.named_parameters() or "
            f"model.parameters(), not {type(params).__name__}."
        )
    for name, value in pairs:
        if isinstance(value, (UninitializedParameter, UninitializedBuffer)):
            raise ValueError(
                f"broadcast_parameters: {name or 'a parameter'} has no shape yet. Run the model "
                "once, on all ranks, before its parameters are broadcast."
            )
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(
                f"broadcast_parameters: {name or 'an entry'} is not a tensor, but of type "
                f"{type(value).__name__}. broadcast_object sends other objects."
            )
    return [(name, value) for name, value in pairs if value is not None]


# ---- an optimizer's content, taken apart into what is pickled and tensors to be sent -----------

_Shapes = list[list[tuple[int, ...]]]
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


_Content = tuple[list[dict[str, Any]], dict[int, Any], dict[Any, Any]]
"""The content of an optimizer, with slots where its tensors are: the options of each group, without
its parameters; the state by the number of the parameter, counted through all groups; and the state
that belongs to no parameter, by its key.
"""


def _shapes(optimizer: Optimizer) -> _Shapes:
    """Return what optimizers must have in common for one to take the other's state."""
    return [[tuple(each.shape) for each in group["params"]] for group in optimizer.param_groups]


def _spell(of: _Shapes) -> str:
    groups = [f"{len(each)} ({sum(map(math.prod, each))} numbers)" for each in of]
    return f"{len(of)} group{'s' * (len(of) != 1)} of {', '.join(groups)} parameters"


def _take(optimizer: Optimizer) -> tuple[_Content, list[Tensor]]:
    """The content, which can be pickled, and the tensors in the order of their slots."""
    tensors: list[Tensor] = []

    def parted(thing: Any, beside: Tensor | None = None) -> Any:
        def slot(tensor: Tensor) -> Tensor | _Slot:
            if tensor.layout is not torch.strided:
                return tensor.detach().cpu()  # a sparse one is sent as a part of the object
            tensors.append(tensor)
            near = beside is not None and tensor.device == beside.device
            return _Slot(tuple(tensor.shape), tensor.dtype, near)

        return tree_map_only(Tensor, slot, thing)

    options = [
        parted({key: value for key, value in group.items() if key != "params"})
        for group in optimizer.param_groups
    ]
    state = {
        number: parted(optimizer.state[param], param)
        for number, param in enumerate(_params(optimizer))
        if param in optimizer.state
    }
    keyed: dict[Any, Any] = optimizer.state
    other = parted({key: value for key, value in keyed.items() if not isinstance(key, Tensor)})
    return (options, state, other), tensors


def _put(optimizer: Optimizer, content: _Content) -> list[Tensor]:
    """Make the optimizer's content this one; returns the tensors that are to be filled, in the
    order of their slots. Tensors of the right shape and type that stand under the same keys stay.
    """
    tensors: list[Tensor] = []
    groups, state, other = content

    def whole(thing: Any, here: Any, beside: Tensor | None) -> Any:
        if isinstance(thing, dict):
            old = here if isinstance(here, dict) else {}
            return {key: whole(value, old.get(key), beside) for key, value in thing.items()}

        def made(leaf: Tensor | _Slot) -> Tensor:
            if isinstance(leaf, Tensor):
                return leaf.to(beside.device if beside is not None else "cpu")
            stays = leaf is thing and _fits(here, leaf)
            tensors.append(here if stays else _room(leaf, beside))
            return tensors[-1]

        return tree_map_only((Tensor, _Slot), made, thing)

    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update(whole(options, group, None))
    for number, param in enumerate(_params(optimizer)):
        if number in state:
            optimizer.state[param] = whole(state[number], optimizer.state[param], param)
        else:
            optimizer.state.pop(param, None)
    keyed: dict[Any, Any] = optimizer.state
    keyed.update(whole(other, keyed, None))
    return tensors


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


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
