"""Broadcasts of variables and of Python objects, and the hook for sessions of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shanty.collectives import objects
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.tensorflow_ops import ops
from shanty.tensorflow_ops.installed import v1
from shanty.tensorflow_ops.ops import broadcast_global_variables, broadcast_variables

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_global_variables", "broadcast_variables"]
__all__ += ["allgather_object", "broadcast_object", "broadcast_object_fn"]


class BroadcastGlobalVariablesHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook of sessions and Estimators that gives all ranks the global variables of one.

    root_rank: the rank whose values are taken. device: where the operation is placed.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph, unless it is there."""
        if self.bcast_op is None or self.bcast_op.graph is not v1.get_default_graph():
            with ops.placed(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of the rank `root_rank`: itself there, a copy by pickle on the other ranks.

    obj: anything that can be pickled (by cloudpickle, where it is installed); other ranks may
    pass None. session: not needed. name: the same on all ranks, where several threads do this.
    Raises what pickle raises on the root, and HorovodInternalError on the other ranks then.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return the function of one object that calls `broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The objects of all ranks, in their order; copies by pickle.

    obj: anything that can be pickled (by cloudpickle, where it is installed). session: not
    needed. name: the same on all ranks, where several threads do this at a time.
    """
    return objects.allgather_object(obj, name, process_set)
