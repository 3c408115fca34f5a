"""Adapters for workflow engines: a task of theirs that runs on N ranks.

Each module is for one engine, and loads it: `shanty.workflows.prefect`, `shanty.workflows.dagster`.
"""
