"""The name by which scripts import what `shanty.integrations.flyte` has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shanty.integrations.flyte.ranks import on_ranks as on_ranks

__all__ = ["on_ranks"]


def __getattr__(name: str) -> Any:
    if name != "on_ranks":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shanty.integrations.flyte import ranks

    return ranks.on_ranks
