"""Handles: the numbers by which a script knows what it has started and not yet waited for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from shanty.torch.hvd import registry
from shanty.torch.hvd.notes import Note
from shanty.torch.hvd.process_sets import ProcessSet
from shanty.torch.hvd.requests import Request

Form = Callable[[Request, Sequence[Tensor]], Any]
"""Makes what `synchronize` returns of a request that succeeded and the tensors it was to fill."""

_under_way: dict[int, Note | tuple[Request, Sequence[Tensor], Form]] = {}
_numbers = itertools.count(1)


def start(
    request: Request, process_set: ProcessSet, form: Form, outputs: Sequence[Tensor] = ()
) -> int:
    """Submit a request to the engine of `process_set`; returns its handle.

    outputs: the script's own tensors that the request fills, where it does.
    Raises ValueError where the process set is not registered or this rank is not in it, and
    HorovodInternalError before `init`, for a name that is in flight, or after a shutdown.
    """
    registry.engine(process_set).inbox.put(request)
    handle = next(_numbers)
    _under_way[handle] = request, outputs, form
    return handle


def note(made: Note) -> int:
    """The handle of a note."""
    handle = next(_numbers)
    _under_way[handle] = made
    return handle


def poll(handle: int) -> bool:
    """Whether the operation has ended, so that `synchronize` would not block.

    Raises ValueError for a handle that was never given, or was synchronized already.
    """
    found = _under_way.get(handle)
    if found is None:
        raise ValueError(f"There is no handle {handle!r}, or it has been synchronized already.")
    request = found if isinstance(found, Note) else found[0]
    engine = request.engine
    if engine is not None and not request.done:
        engine.hurry()
    return request.done


def synchronize(handle: int) -> Any:
    """Wait until the operation has ended, and return its result.

    That is a tensor; a tuple of them for a grouped operation; for alltoall the tensor and how
    much of it came from each rank. None for a handle that was synchronized already.
    Raises HorovodInternalError where it failed.
    """
    found = _under_way.get(handle)
    if found is None:
        return None
    if isinstance(found, Note):
        outcome = found.outcome
        if outcome is None or not outcome.done or outcome.error is not None:
            _wait(handle, found)
        else:  # as for all but the first of those that are done together
            _under_way.pop(handle, None)
        return found.tensor
    request, outputs, form = found
    _wait(handle, request)
    return form(request, outputs)


def _wait(handle: int, started: Request | Note) -> None:
    try:
        started.wait()
    finally:
        if started.done:
            _under_way.pop(handle, None)


def forget() -> None:
    """Start anew: the handles of an earlier `init` mean nothing any more."""
    global _numbers
    _under_way.clear()
    _numbers = itertools.count(1)


def own(_: Request, outputs: Sequence[Tensor]) -> Tensor:
    """The script's own tensor."""
    return outputs[0]


def own_all(_: Request, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The script's own tensors, of a group."""
    return tuple(outputs)


def made(request: Request, _: Sequence[Tensor]) -> Tensor:
    """The tensor that the engine made."""
    return request.results[0]


def made_all(request: Request, _: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors that the engine made, of a group."""
    return tuple(request.results)
