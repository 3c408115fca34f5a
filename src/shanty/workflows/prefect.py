"""Prefect tasks on N ranks: `@task(ranks=4, on="lab")`."""

from shanty.integrations.prefect import call, task

__all__ = ["call", "task"]
