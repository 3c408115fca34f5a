"""The part of Horovod's elastic training that belongs to no framework."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shanty.collectives import elastic
from shanty.collectives.elastic import ObjectState, State

Result = TypeVar("Result")


def run_fn(func: Callable[..., Result], reset: Callable[[], object]) -> Callable[..., Result]:
    """As a framework's `elastic.run`; `reset` ends Horovod and starts it again."""
    form = elastic.Format(load=_load, save=pickle.dump)
    if "torch" in sys.modules:  # whose tensors may be in the state
        from shanty.torch.elastic import FORMAT as form  # noqa: N811
    return elastic.run_fn(func, reset, form)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


class WorkerNotificationManager:
    """Would report hosts that come and go. The hosts of a run stay, so it never reports any."""

    def init(self, *_: object, **__: object) -> None:
        """Do nothing: this needs no set-up."""

    def register_listener(self, listener: object) -> None:
        """Do nothing: the listener is never called."""

    def remove_listener(self, listener: object) -> None:
        """Do nothing: the listener was never called."""


notification_manager = WorkerNotificationManager()

__all__ = ["ObjectState", "State", "WorkerNotificationManager", "notification_manager", "run_fn"]
