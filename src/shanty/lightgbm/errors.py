"""The errors of shanty.lightgbm, by kind."""

from __future__ import annotations


class DataError(ValueError):
    """Data or parameters that cannot be trained on. Every rank raises it, with the same words."""


class WorldError(RuntimeError):
    """The ranks have trained different models, or one of them has left the training."""
