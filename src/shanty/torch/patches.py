"""Calls of torch.distributed that look at the backend's name before they ask the group.

`monitored_barrier` insists on gloo, `split_group` on a device, `new_group` with another backend on
a store, which a world of MPI has not, and the flight recorder (from torch 2.15) on a name that a
group in Python cannot give it. For groups of the mpi backend they are answered here; for all
others torch's own run as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from shanty.torch.identity import Identity

_KEEPS_ORDER = hasattr(c10d, "_NonGroupMember")
"""True where `split_group` leaves the ranks of a split in the order given, and returns
NON_GROUP_MEMBER, no longer None, on a rank that is in no split: torch 2.15 does.
"""


def apply() -> None:
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
        call = wraps(original)(_around(original, around))
        call.shanty = True  # type: ignore[attr-defined]
        setattr(c10d, name, call)
        if hasattr(dist, name):
            setattr(dist, name, call)


def _around(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    return call


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
