"""Starts ranks from a Python script: `run`."""

from shanty.compat.starting import run

__all__ = ["run"]
