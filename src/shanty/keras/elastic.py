"""`hvd.elastic` for `keras`: training that goes back to its last commit."""

from __future__ import annotations

import keras

from shanty.keras import callback_methods as methods
from shanty.keras.elastic_state import HorovodInternalError as HorovodInternalError
from shanty.keras.elastic_state import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from shanty.keras.elastic_state import KerasState as KerasState
from shanty.keras.elastic_state import run as run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback"]
__all__ += ["UpdateEpochStateCallback", "run"]


class CommitStateCallback(methods.CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state after every so many batches, and at the end of an epoch."""


class UpdateBatchStateCallback(methods.UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps in `state.batch` which batch of an epoch is next."""


class UpdateEpochStateCallback(methods.UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps in `state.epoch` which epoch is next, over all calls of `fit`."""
