"""Horovod for Keras in TensorFlow: `import horovod.tensorflow.keras as hvd`."""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty.tensorflow import keras
from shanty.tensorflow.keras import *

__all__ = [each for each in keras.__all__ if each not in ("callbacks", "elastic")]


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "elastic"):
        return import_module(f"{__name__}.{name}")
    return getattr(keras, name)
