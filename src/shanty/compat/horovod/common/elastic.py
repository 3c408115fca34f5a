"""Horovod's elastic training, as far as it is no framework's own."""

from __future__ import annotations

from shanty.torch.elastic import ObjectState, State, run_fn


class WorkerNotificationManager:
    """Would tell of hosts that come and go. The hosts of a run stay, so it has nothing to tell."""

    def init(self, *_: object, **__: object) -> None:
        """Nothing is to be set up."""

    def register_listener(self, listener: object) -> None:
        """Nothing will be told to it."""

    def remove_listener(self, listener: object) -> None:
        """Nothing was told to it."""


notification_manager = WorkerNotificationManager()

__all__ = ["ObjectState", "State", "WorkerNotificationManager", "notification_manager", "run_fn"]
