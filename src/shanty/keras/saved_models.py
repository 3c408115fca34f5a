"""`load_model`: a model that was saved, with its optimizer made a distributed one."""

from __future__ import annotations

from typing import Any

from shanty.keras.compression import Compression
from shanty.keras.optimizer import DistributedMixin, DistributedOptimizer


def load(keras: Any, filepath: Any, custom_optimizers: Any, custom_objects: Any, how: Any) -> Any:
    """Load a model with a module of Keras, and wrap its optimizer. how: its compression."""
    known = {each.__name__: each for each in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known or None)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not isinstance(optimizer, DistributedMixin):
        model.optimizer = DistributedOptimizer(optimizer, compression=how or Compression.none)
    return model
