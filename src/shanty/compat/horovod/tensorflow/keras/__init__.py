"""Horovod for tf.keras: `import horovod.tensorflow.keras as hvd`."""

# ruff: noqa: F403

from importlib import import_module

from shanty.compat.horovod.common.util import (
    is_version_greater_equal_than as is_version_greater_equal_than,
)
from shanty.tensorflow import keras
from shanty.tensorflow.keras import *

callbacks = import_module(f"{__name__}.callbacks")
elastic = import_module(f"{__name__}.elastic")

__all__ = list(keras.__all__)
