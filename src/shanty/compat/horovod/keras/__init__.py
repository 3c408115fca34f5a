"""Horovod for Keras: `import horovod.keras as hvd`."""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty import keras
from shanty.keras.api import *

__all__ = list(keras.api.__all__)


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "elastic"):
        return import_module(f"{__name__}.{name}")
    return getattr(keras, name)
