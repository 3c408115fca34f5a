"""Python objects sent between ranks, pickled, for all frameworks. Starts no MPI."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from shanty.collectives import arguments, process_sets
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Kind, Request, Tensor


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of the rank `root_rank`: itself there, a copy by pickle on the other ranks.

    obj: anything that can be pickled (by cloudpickle, where it is installed); other ranks may
    pass None. name: the same on all ranks, where several threads do this at a time.
    Raises what pickle raises on the root, and HorovodInternalError on the other ranks then.
    """
    name = name or "broadcast_object"
    is_root = process_sets.current().topology.rank == root_rank
    root = arguments.root(root_rank, process_set)
    failure: Exception | None = None
    data = b""
    if is_root:
        try:
            data = _dumps(obj)
        except Exception as error:  # noqa: BLE001 (raised below, when the others know)
            failure = error
    length = bytearray((len(data) if failure is None else 0).to_bytes(8, "little"))
    _broadcast(length, f"{name}.size", root, process_set)
    if failure is not None:
        raise failure
    size = int.from_bytes(length, "little")
    if not size:  # no pickle is that short
        raise HorovodInternalError(
            f"broadcast_object: rank {root_rank} could not pickle its object; it says why."
        )
    content = bytearray(data) if is_root else bytearray(size)
    _broadcast(content, f"{name}.content", root, process_set)
    return obj if is_root else pickle.loads(content)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks, in their order; copies by pickle.

    obj: anything that can be pickled (by cloudpickle, where it is installed). name: the same on
    all ranks, where several threads do this at a time.
    """
    name = name or "allgather_object"
    content = bytearray(_dumps(obj))
    sizes = _gathered(bytearray(len(content).to_bytes(8, "little")), f"{name}.size", process_set)
    every = _gathered(content, f"{name}.content", process_set)
    found, start = [], 0
    for at in range(0, len(sizes), 8):
        end = start + int.from_bytes(sizes[at : at + 8], "little")
        found.append(pickle.loads(every[start:end]))
        start = end
    return found


def _dumps(obj: Any) -> bytes:
    try:
        from cloudpickle import dumps  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return pickle.dumps(obj)
    pickled: bytes = dumps(obj)
    return pickled


def _broadcast(memory: bytearray, name: str, root: int, process_set: ProcessSet) -> None:
    """`memory`, as long on all ranks, becomes that of the root."""
    tensors = [_tensor(memory)]
    _done(Request(Kind.BROADCAST, name, tensors, tensors, root=root), process_set)


def _gathered(memory: bytearray, name: str, process_set: ProcessSet) -> bytes:
    """Return what all ranks have, end to end."""
    (every,) = _done(Request(Kind.ALLGATHER, name, [_tensor(memory)]), process_set)
    kernels = process_sets.current().kernels
    into = bytearray(every.nbytes)
    kernels.copy(_tensor(into), every)
    return bytes(into)


def _tensor(memory: bytearray) -> Tensor:
    """Return a tensor of the framework in use over these bytes."""
    kernels = process_sets.current().kernels
    byte = kernels.empty((0,), "uint8").dtype
    return kernels.view(memoryview(memory), byte, 0, (len(memory),))


def _done(request: Request, process_set: ProcessSet) -> Sequence[Tensor]:
    process_sets.negotiator(process_set).queue.put(request)
    return request.wait()
