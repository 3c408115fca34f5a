"""Calls of torch.distributed that look at the backend's name before they ask the group.

`monitored_barrier` insists on gloo, `split_group` on a device, and `new_group` with another
backend on a store, which a world of MPI has not. For groups of the mpi backend they are answered
here; for all others torch's own run as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from shanty.torch.identity import Identity


def apply() -> None:
    """Put the calls below in the place of torch's. Idempotent."""
    for name, around in (
        ("monitored_barrier", _monitored_barrier),
        ("split_group", _split_group),
        ("_new_process_group_helper", _new_process_group_helper),
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
) -> dist.ProcessGroup | None:
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
    mine = next((sorted(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return None
    in_world = c10d.get_process_group_ranks(parent)
    ranks = [in_world[rank] for rank in mine]
    backend, store = c10d._world.pg_map[parent]
    name = c10d._process_group_name(ranks, use_hashed_name=True)
    made, _ = c10d._new_process_group_helper(
        len(ranks),
        mine.index(parent.rank()),
        ranks,
        backend,
        store,
        name,
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


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    return group if group is not None else c10d.GroupMember.WORLD
