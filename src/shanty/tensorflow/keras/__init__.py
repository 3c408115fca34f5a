"""Horovod's API for `tf.keras`: `import shanty.tensorflow.keras as hvd`.

It is `shanty.keras`, for the Keras that `tf.keras` is: another one than `keras` where the script
has set TF_USE_LEGACY_KERAS=1. `callbacks` and `elastic` derive from that one's classes.
"""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty.collectives import process_sets as registry
from shanty.collectives import world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import *
from shanty.collectives.world import *
from shanty.keras import saved_models
from shanty.keras.compression import Compression
from shanty.keras.data import shard
from shanty.keras.evaluation import evaluate
from shanty.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from shanty.keras.values import Adasum, Average, Sum, allgather, allreduce, broadcast, reducescatter
from shanty.tensorflow.api import cuda_built, init
from shanty.tensorflow.functions import broadcast_global_variables as _operation
from shanty.tensorflow.installed import tf, v1

_LATER = ("callbacks", "elastic")
__all__ = ["Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError"]
__all__ += ["PartialDistributedOptimizer", "Sum", "allgather", "allreduce", "broadcast"]
__all__ += [
    "broadcast_global_variables",
    "cuda_built",
    "evaluate",
    "init",
    "load_model",
    "reducescatter",
]
__all__ += ["shard", *_LATER]
__all__ += registry.__all__
__all__ += world.__all__


def broadcast_global_variables(root_rank: int) -> Any:
    """Give all ranks the global variables of a rank, in Keras's session, on TensorFlow 1.

    RuntimeError where TensorFlow is eager.
    """
    return v1.keras.backend.get_session().run(_operation(root_rank))


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that was saved, with its optimizer, its state too, made a distributed one.

    custom_optimizers: classes of optimizers that are not Keras's. custom_objects: as of
    tf.keras.models.load_model. compression: how gradients travel. legacy_opts: nothing depends
    on it.
    """
    return saved_models.load(tf.keras, filepath, custom_optimizers, custom_objects, compression)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
