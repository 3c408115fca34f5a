"""Horovod's API on Keras 2 and 3, on TensorFlow, PyTorch and JAX: `import shanty.keras as hvd`.

`optimizer` makes `fit` use the gradients of all ranks, `callbacks` do what is done around it,
`backends` take a backend's tensors to memory and back. `shanty.tensorflow.keras` is for tf.keras.
"""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty.collectives import call_sites
from shanty.keras import api, installed
from shanty.keras.api import *

_LATER = ("callbacks", "elastic")
__all__ = [*api.__all__, *_LATER]

call_sites.hide(installed.keras.__file__, __file__)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
