"""Horovod for TensorFlow: `import horovod.tensorflow as hvd`."""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty import tensorflow
from shanty.tensorflow.api import *

__all__ = list(tensorflow.__all__)
for _part in ("compression", "functions", "mpi_ops"):
    import_module(f"{__name__}.{_part}")  # hvd.mpi_ops and its like need no import of their own


def __getattr__(name: str) -> Any:
    if name in ("elastic", "keras"):
        return import_module(f"{__name__}.{name}")
    return getattr(tensorflow, name)
