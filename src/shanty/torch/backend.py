"""The name `mpi`: brings `init_process_group("mpi")` and `new_group` to an `MPIGroup`.

torch.distributed knows the backend "mpi" already: it takes rank and world size from it, needs no
store, and calls `ProcessGroupMPI.create(ranks)`, which only its MPI builds have. This module puts
that class there. MPI itself starts with the first group, not with the import.

Some calls of torch.distributed look at the backend's name before they ask the group:
`monitored_barrier` insists on gloo, `split_group` on a device, `new_group` with another backend on
a store, which a world of MPI has not, and the flight recorder (from torch 2.15) on a name that a
group in Python cannot give it. For groups of the mpi backend they are answered here; for all
others torch's own run as ever.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import set_debug_level
from torch.distributed import distributed_c10d as c10d

from shanty.collectives import survivors
from shanty.collectives.world import promised_world, start_mpi
from shanty.torch.identity import Identity

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.torch.group import MPIGroup

_KEEPS_ORDER = hasattr(c10d, "_NonGroupMember")
"""True where `split_group` leaves the ranks of a split in the order given, and returns
NON_GROUP_MEMBER, no longer None, on a rank that is in no split: torch 2.15 does.
"""
_GROUP_TAG = 0x5A17  # of Comm.Create_group, whose tags are apart from those of messages


class ProcessGroupMPI:
    """The stand-in for the C++ class of this name in torch's MPI builds."""

    @staticmethod
    def create(ranks: Sequence[int]) -> MPIGroup:
        """Make the group of these ranks of the world, in this order; of all of them when empty.

        Only members call it. Collective over them.
        Raises RuntimeError when the environment contradicts MPI's world, or MPI was initialised
        without the thread level that a communication thread needs.
        """
        limit = _time_limit(sys._getframe(1).f_locals)
        from shanty.torch.group import MPIGroup  # imports, and so starts, MPI

        world = _world()
        _avoid_detail()
        ranks = list(ranks)
        if survivors.is_elastic() and not ranks:
            from shanty.torch.elastic_group import ElasticGroup

            return ElasticGroup.form(world, ranks, _GROUP_TAG, limit)
        return MPIGroup.form(world, ranks, _GROUP_TAG, limit)


def register() -> None:
    """Make `mpi` an available backend of torch.distributed, for CPU and CUDA tensors."""
    setattr(c10d, "ProcessGroupMPI", ProcessGroupMPI)  # noqa: B010 (its stub declares a class)
    c10d._MPI_AVAILABLE = True
    dist.Backend.backend_capability["mpi"] = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
    _patch()


def _world() -> MPI.Intracomm:
    """MPI_COMM_WORLD, started if need be, with its thread level and size checked; in an elastic run
    what is left of it.
    """
    survivors.refuse_spares('init_process_group("mpi")')
    start_mpi('init_process_group("mpi")', serialized=True)
    world = survivors.living(promised_world) if survivors.is_elastic() else promised_world()
    whole = c10d.GroupMember.WORLD  # of another backend, beside which this one is used
    if whole is not None and (whole.rank(), whole.size()) != (world.rank, world.size):
        raise RuntimeError(
            f"PyTorch's world is initialised as rank {whole.rank()} of {whole.size()}, but MPI "
            f"reports rank {world.rank} of {world.size}: a group of the mpi backend would have "
            "other members. Pass MPI's rank and size to init_process_group."
        )
    return world


def _time_limit(caller: Mapping[str, object]) -> float:
    """Seconds. torch hands the time limit of a group to every backend but this one, so `create`
    reads it where torch has it: a local variable of the caller, or from torch 2.15 in its `opts`.
    """
    given = caller.get("timeout", getattr(caller.get("opts"), "timeout", None))
    if not isinstance(given, timedelta):
        given = c10d.default_pg_timeout
    return given.total_seconds()


def _avoid_detail() -> None:
    if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
        warnings.warn(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL crashes DistributedDataParallel with a backend written "
            "in Python (torch 2.13, segmentation fault); the mpi backend lowers it to INFO.",
            stacklevel=2,
        )
        set_debug_level(c10d.DebugLevel.INFO)


# ---- calls that torch answers by the name of the backend ---------------------------------------


def _patch() -> None:
    """Put the calls below in the place of torch's. Idempotent."""
    for name, around in (
        ("monitored_barrier", _monitored_barrier),
        ("split_group", _split_group),
        ("_new_process_group_helper", _new_process_group_helper),
        ("_maybe_attach_flight_recorder", _maybe_attach_flight_recorder),
    ):
        original = getattr(c10d, name, None)
        if original is None or hasattr(original, "shanty"):
            continue
        call = wraps(original)(partial(around, original))
        vars(call)["shanty"] = True
        setattr(c10d, name, call)
        if hasattr(dist, name):
            setattr(dist, name, call)


def _monitored_barrier(
    original: Callable[..., None],
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    here = _group(group)
    if not isinstance(here, Identity):
        original(group, timeout, wait_all_ranks)
        return
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    here.monitored_barrier(limit, wait_all_ranks)


def _split_group(
    original: Callable[..., dist.ProcessGroup | None],
    parent_pg: dist.ProcessGroup | None = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **more: Any,
) -> dist.ProcessGroup | int | None:
    parent = _group(parent_pg)
    if not isinstance(parent, Identity):
        return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **more)
    if not split_ranks or not all(split_ranks):
        raise ValueError("split_group: split_ranks must be lists of ranks, none of them empty.")
    flat = [rank for ranks in split_ranks for rank in ranks]
    if len(set(flat)) != len(flat) or not set(flat) <= set(range(parent.size())):
        raise ValueError(
            f"split_group: {split_ranks} must name ranks of a group of {parent.size()}, each once."
        )
    parent.splits += 1
    mine = next((list(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return c10d.GroupMember.NON_GROUP_MEMBER if _KEEPS_ORDER else None
    if not _KEEPS_ORDER:
        mine.sort()
    in_world = c10d.get_process_group_ranks(parent)
    ranks = [in_world[rank] for rank in mine]
    backend, store = c10d._world.pg_map[parent]
    # torch's names are counted, and not all ranks of the world need split this group.
    name = f"{parent.group_name}/{parent.splits}-{ranks[0]}"
    made, _ = c10d._new_process_group_helper(
        len(ranks),
        mine.index(parent.rank()),
        ranks,
        backend,
        store,
        name,  # type: ignore[arg-type]  # 2.7 lacks GroupName
        timeout=timeout or c10d._get_default_timeout(c10d.Backend(backend)),
        group_desc=group_desc,
    )
    c10d._world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(ranks)}
    return made  # type: ignore[no-any-return]


def _new_process_group_helper(
    original: Callable[..., Any],
    group_size: int,
    group_rank: int,
    ranks: list[int],
    backend: str,
    store: c10d.Store,
    *rest: Any,
    **more: Any,
) -> Any:
    world = c10d.GroupMember.WORLD
    if ranks and isinstance(world, Identity) and str(backend) not in ("mpi", "fake"):
        store = world.get_group_store()
    return original(group_size, group_rank, ranks, backend, store, *rest, **more)


def _maybe_attach_flight_recorder(
    original: Callable[..., None], group: dist.ProcessGroup, *rest: Any
) -> None:
    if not isinstance(group, Identity):
        original(group, *rest)


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    return group if group is not None else c10d.GroupMember.WORLD
