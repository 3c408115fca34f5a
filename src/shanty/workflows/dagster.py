"""Dagster ops and assets on N ranks: `@ranks_asset(ranks=4)`."""

from shanty.integrations.dagster import call, ranks_asset, ranks_op

__all__ = ["call", "ranks_asset", "ranks_op"]
