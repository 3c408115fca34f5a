"""Horovod's API on TensorFlow: `import shanty.tensorflow as hvd`; `keras` has that for tf.keras.

`mpi_ops` are the operations, `steps` puts them into graphs, `gradients` reduces those of a tape or
an optimizer. MPI starts with `init`, not with the import. The engine is `shanty.collectives`.
"""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty.collectives import call_sites
from shanty.tensorflow import api, installed
from shanty.tensorflow.api import *

# What loads Keras, or is seldom needed, is loaded when it is used.
_LATER = {
    "SyncBatchNormalization": "sync_batch_norm",
    "elastic": "elastic",
    "keras": "keras",
}
__all__ = [*api.__all__, *_LATER]

call_sites.hide(installed.tensorflow.__file__, __file__)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_LATER[name]}")
    return module if name == _LATER[name] else getattr(module, name)
