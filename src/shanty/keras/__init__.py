"""Horovod's API on Keras 2 and 3, on TensorFlow, PyTorch and JAX: `import shanty.keras as hvd`.

`optimizer` makes `fit` use the gradients of all ranks, `callbacks` do what is done around it,
`backends` take a backend's tensors to memory and back. `shanty.tensorflow.keras` is for tf.keras.
"""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras

from shanty.collectives import call_sites
from shanty.keras import names, saved_models, variables
from shanty.keras.backends import backend
from shanty.keras.names import *

_LATER = ("callbacks", "elastic")
__all__ = [*names.__all__, "broadcast_global_variables", "cuda_built", "load_model", *_LATER]

call_sites.hide(keras.__file__, __file__)
load_model = saved_models.loader_of(keras)


def cuda_built() -> bool:
    """Return whether the backend has CUDA, so that its tensors on a GPU can be passed."""
    if backend() == "tensorflow":
        return bool(import_module("tensorflow").test.is_built_with_cuda())
    if backend() == "torch":
        return import_module("torch").version.cuda is not None
    return any(each.platform == "gpu" for each in import_module("jax").devices())


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


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        import shanty.keras.callbacks  # where `from` would ask this function again

        return shanty.keras.callbacks
    if name == "elastic":
        import shanty.keras.elastic

        return shanty.keras.elastic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
