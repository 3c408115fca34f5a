"""PyTorch, as the checks of Horovod's API see it. See framework.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shanty.torch as hvd

BOUND = 30.0
REDUCED = (
    *("float64", "float32", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"),
    *("bool", "complex64", "complex128", "uint16", "uint32"),
)
EVERY = (*REDUCED, "float8_e5m2")
WITHOUT_AVERAGE = ("bool", "uint16", "uint32")
SAME_ON_ALL = {"eager": (hvd.HorovodInternalError,)}
IN_GRAPHS = ()


def begin() -> None:
    torch.sparse.check_sparse_tensor_invariants.enable()  # else torch warns
    hvd.init()


def barrier() -> None:
    if hvd.is_initialized():
        hvd.barrier()


end = hvd.shutdown


def tensor(values: Any, dtype: str | torch.dtype | None = None) -> Tensor:
    made = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype or made.dtype
    return made.to(kind, copy=True)


array = tensor


def wide(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return np.asarray(value).astype(np.complex128 if np.iscomplexobj(value) else np.float64)
    kind = torch.complex128 if value.is_complex() else torch.float64
    return value.detach().to(kind).numpy()


def raw(value: Tensor) -> bytes:
    row = value.detach().reshape(-1)
    return row.contiguous().view(torch.uint8).numpy().tobytes() if len(row) else b""


sum = torch.sum


def unreducible() -> list[Tensor]:
    return [torch.ones(2, 2).to_sparse(), torch.ones(2).to(torch.float8_e5m2)]


def more_that_needs_init() -> list[Callable[[], object]]:
    state = torch.nn.Linear(3, 1).state_dict()
    return [
        lambda: hvd.broadcast_(torch.ones(4), 0),
        lambda: hvd.broadcast_parameters(state, 0),
        hvd.barrier,
    ]


def both(call: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "eager", call


def ways(
    cases: Sequence[tuple[Any, ...]], call: Callable[..., Any], share: int = 1
) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    for case in cases:
        yield "eager", case, call(*case)


def forms(name: str) -> list[Callable[..., Any]]:
    """At once, later, and into the tensors themselves."""
    found = [
        getattr(hvd, name),
        lambda *of, **how: hvd.synchronize(getattr(hvd, f"{name}_async")(*of, **how)),
    ]
    within = [getattr(hvd, f"{name}{kind}", None) for kind in ("_", "_async_")]
    return [*found, *(partial(_within, each) for each in within if each)]


def _within(function: Callable[..., Any], own: Any, *more: Any, **how: Any) -> Any:
    """The copy of `own` that `function` has written to, and returns."""
    copy = own.clone() if isinstance(own, Tensor) else [each.clone() for each in own]
    found = function(copy, *more, **how)
    found = hvd.synchronize(found) if isinstance(found, int) else found
    if isinstance(own, Tensor):
        assert found is copy
    else:
        assert all(one is other for one, other in zip(found, copy, strict=True))
    return found


def grouped(name: str) -> Iterator[tuple[Callable[..., Any], type]]:
    """The forms of a grouped call, and the type of what each returns."""
    at_once = tuple if name == "grouped_allgather" else list
    yield from zip(forms(name), (at_once, tuple, tuple, tuple), strict=False)


def splits_as(splits: list[int]) -> list[tuple[Any, str]]:
    """The same splits as all that is taken for them, and the type of the received ones."""
    short, long = torch.tensor(splits, dtype=torch.int32), torch.tensor(splits)
    return [(splits, "int32"), (tuple(splits), "int32"), (short, "int32"), (long, "int64")]


def gradients(call: Callable[..., Any], w: Any, *xs: Any) -> list[tuple[str, list[Any]]]:
    own = [tensor(each).clone().requires_grad_() for each in xs]
    (call(*own) * tensor(w)).sum().backward()
    return [("eager", [each.grad for each in own])]
