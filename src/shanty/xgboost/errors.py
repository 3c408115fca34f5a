"""The errors of shanty.xgboost, by kind."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be trained on. Every rank raises it, with the same words.

    str() names the rank, and the file and line where there is one.
    """


class WorldError(RuntimeError):
    """XGBoost's ranks cannot be brought together, or their world has ended."""
