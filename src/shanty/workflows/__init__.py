"""The names by which flows import `shanty.integrations.prefect` and `shanty.integrations.dagster`.

Each module is for one engine, and loads it.
"""
