"""`tf.contrib.data`: transformations of datasets, which are in tf.data.experimental now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1.installed import v1


def batch_and_drop_remainder(batch_size: int) -> Callable[[Any], Any]:
    """Return a transformation into whole batches of `batch_size`, for `Dataset.apply`."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def __getattr__(name: str) -> Any:
    for place in (v1.data.experimental, v1.data):
        if not name.startswith("_") and hasattr(place, name):
            return getattr(place, name)
    raise AttributeError(absent.text(f"tf.contrib.data.{name}"))
