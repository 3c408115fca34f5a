"""Horovod's API on TensorFlow: `import shanty.tensorflow as hvd`; `keras` has that for tf.keras.

`tape` and `optimizer` reduce the gradients of a step; the operations are in
`shanty.tensorflow_ops`. MPI starts with `init`, not with the import. The engine is
`shanty.collectives`.
"""

# ruff: noqa: F403

from __future__ import annotations

from typing import Any

from shanty.collectives import call_sites
from shanty.tensorflow import api
from shanty.tensorflow.api import *

_LATER = ("SyncBatchNormalization", "elastic", "keras")
__all__ = [*api.__all__, *_LATER]

call_sites.hide(__file__)


def __getattr__(name: str) -> Any:
    """Load what loads Keras, or is seldom needed, when it is used."""
    if name == "SyncBatchNormalization":
        from shanty.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "elastic":
        import shanty.tensorflow.elastic  # where `from` would ask this function again

        return shanty.tensorflow.elastic
    if name == "keras":
        import shanty.tensorflow.keras

        return shanty.tensorflow.keras
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
