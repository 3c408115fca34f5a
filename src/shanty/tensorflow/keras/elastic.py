"""`hvd.elastic` for `tf.keras`: training that goes back to its last commit."""

from __future__ import annotations

from shanty.keras import callback_methods as methods
from shanty.keras.elastic_state import HorovodInternalError as HorovodInternalError
from shanty.keras.elastic_state import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from shanty.keras.elastic_state import KerasState as KerasState
from shanty.keras.elastic_state import run as run
from shanty.tensorflow_ops.installed import tf

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback"]
__all__ += ["UpdateEpochStateCallback", "run"]


class CommitStateCallback(methods.CommitState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state after every so many batches, and at the end of an epoch."""


class UpdateBatchStateCallback(methods.UpdateBatchState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps in `state.batch` which batch of an epoch is next."""


class UpdateEpochStateCallback(methods.UpdateEpochState, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps in `state.epoch` which epoch is next, over all calls of `fit`."""
