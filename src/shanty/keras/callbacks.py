"""Horovod's callbacks for `keras`: what is done around the training of a model."""

from __future__ import annotations

from typing import Any

import keras

from shanty.keras import callback_methods as methods

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
]
__all__ += ["LearningRateWarmupCallback", "MetricAverageCallback"]


class BroadcastGlobalVariablesCallback(methods.Broadcast, keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the variables of one rank, once: before the first batch, or after it."""


class MetricAverageCallback(methods.MetricAverage, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over the ranks; those of `evaluate` are exact."""


class LearningRateScheduleCallback(methods.Schedule, keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate from `start_epoch` until `end_epoch`."""


class LearningRateWarmupCallback(methods.Warmup, keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from `initial_lr` / ranks to `initial_lr`, batch by batch."""


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model that has been the best so far, to `filepath`, which is to be set."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            "best.keras",
            monitor,
            verbose,
            save_best_only=True,
            save_weights_only=False,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None
