"""Flyte's MPI tasks on ranks: workflows run locally, as flytekit runs them, their MPI under MPI.

Needs flytekit and flytekitplugins-kfmpi, which are imported when a workflow is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shanty.flyte.ranks import on_ranks as on_ranks

__all__ = ["on_ranks"]


def __getattr__(name: str) -> Any:
    if name != "on_ranks":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shanty.flyte import ranks

    return ranks.on_ranks
