"""Batch normalization over the samples of all ranks.

The moments are those of all samples, each of which counts the same, also where ranks have batches
of other sizes. For Keras 2 and 3, whichever `tf.keras` is.
"""

from __future__ import annotations

from typing import Any

from shanty.collectives import process_sets
from shanty.collectives.request import Op
from shanty.tensorflow_ops import ops
from shanty.tensorflow_ops.installed import tf


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """A BatchNormalization layer whose moments, in training, are those of all ranks.

    fused: must be false. kwargs: as of tf.keras.layers.BatchNormalization.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused or fused is None:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if not kwargs.get("name"):
            kwargs["name"] = "sync_batch_normalization"
        if hasattr(tf.keras.layers.BatchNormalization, "_fused_can_be_used"):  # Keras 2
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        world = process_sets.standing
        if world is None or world.topology.size == 1:
            return mean, variance
        kind = mean.dtype
        mean, variance = tf.cast(mean, tf.float32), tf.cast(variance, tf.float32)
        samples = tf.cast(tf.size(inputs) // tf.maximum(tf.size(mean), 1), tf.float32)
        sums = tf.stack([mean, variance + mean * mean]) * samples
        # One operation for both, so that a rank without samples takes part all the same.
        sums, samples = ops.grouped_allreduce([sums, samples], op=Op.SUM)
        mean, square = tf.unstack(sums / samples)
        return tf.cast(mean, kind), tf.cast(square - mean * mean, kind)
