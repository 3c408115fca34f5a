"""Horovod's API for `tf.keras`: `import shanty.tensorflow.keras as hvd`.

It is `shanty.keras`, for the Keras that `tf.keras` is: another one than `keras` where the script
has set TF_USE_LEGACY_KERAS=1. `callbacks` and `elastic` derive from that one's classes.
"""

# ruff: noqa: F403

from __future__ import annotations

from typing import Any

from shanty.keras import names, saved_models, variables
from shanty.keras.names import *
from shanty.tensorflow.api import cuda_built
from shanty.tensorflow.api import init as init
from shanty.tensorflow_ops.installed import tf, v1

_LATER = ("callbacks", "elastic")
__all__ = [*names.__all__, "broadcast_global_variables", "cuda_built", "load_model", *_LATER]

load_model = saved_models.loader_of(tf.keras)


def broadcast_global_variables(root_rank: int) -> Any:
    """Give all ranks the global variables of a rank, in Keras's session, on TensorFlow 1.

    RuntimeError where TensorFlow is eager.
    """
    return variables.broadcast_globals(root_rank, v1.keras.backend.get_session())


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        import shanty.tensorflow.keras.callbacks  # where `from` would ask this function again

        return shanty.tensorflow.keras.callbacks
    if name == "elastic":
        import shanty.tensorflow.keras.elastic

        return shanty.tensorflow.keras.elastic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
