"""Horovod's callbacks for `tf.keras`: what is done around the training of a model."""

from __future__ import annotations

from typing import Any

from shanty.keras import callback_methods as methods
from shanty.tensorflow_ops.installed import tf

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
]
__all__ += ["LearningRateWarmupCallback", "MetricAverageCallback"]


class BroadcastGlobalVariablesCallback(methods.Broadcast, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the variables of one rank, once: before the first batch, or after it."""


class MetricAverageCallback(methods.MetricAverage, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over the ranks; those of `evaluate` are exact."""


class LearningRateScheduleCallback(methods.Schedule, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate from `start_epoch` until `end_epoch`."""


class LearningRateWarmupCallback(methods.Warmup, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from `initial_lr` / ranks to `initial_lr`, batch by batch."""


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model that has been the best so far, to `filepath`, which is to be set."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            "best.weights.h5" if save_weights_only else "best.keras",
            monitor,
            verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None
