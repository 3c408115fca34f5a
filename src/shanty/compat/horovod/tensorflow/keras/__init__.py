"""Horovod for tf.keras: `import horovod.tensorflow.keras as hvd`."""

# ruff: noqa: F403

from shanty.compat.aliases import alias
from shanty.compat.horovod.common.util import (
    is_version_greater_equal_than as is_version_greater_equal_than,
)
from shanty.tensorflow import keras
from shanty.tensorflow.keras import *
from shanty.tensorflow.keras import callbacks, elastic

alias(__name__, callbacks=callbacks, elastic=elastic)
__all__ = list(keras.__all__)
