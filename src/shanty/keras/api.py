"""All names of Horovod's API for Keras in one place, and `shard`."""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty.collectives import process_sets as registry
from shanty.collectives import world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import *
from shanty.collectives.world import *
from shanty.keras import saved_models, variables
from shanty.keras.backends import backend
from shanty.keras.compression import Compression
from shanty.keras.data import shard
from shanty.keras.evaluation import evaluate
from shanty.keras.installed import keras
from shanty.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from shanty.keras.start import cuda_built, init
from shanty.keras.values import Adasum, Average, Sum, allgather, allreduce, broadcast, reducescatter

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
__all__ += ["shard"]
__all__ += registry.__all__
__all__ += world.__all__


def broadcast_global_variables(root_rank: int) -> Any:
    """Give all ranks the global variables of a rank, in Keras's session, on TensorFlow 1.

    RuntimeError where TensorFlow is eager, or Keras is on another backend.
    """
    if backend() != "tensorflow":
        raise RuntimeError(
            "hvd.broadcast_global_variables() works with TensorFlow 1. Use "
            "hvd.callbacks.BroadcastGlobalVariablesCallback."
        )
    session = import_module("tensorflow").compat.v1.keras.backend.get_session()
    return variables.broadcast_globals(root_rank, session)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that was saved, with its optimizer, its state too, made a distributed one.

    custom_optimizers: classes of optimizers that are not Keras's. custom_objects: as of
    keras.models.load_model. compression: how gradients travel. legacy_opts: nothing depends on it.
    """
    return saved_models.load(keras, filepath, custom_optimizers, custom_objects, compression)
