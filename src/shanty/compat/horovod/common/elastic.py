"""Horovod's elastic training, as far as it is no framework's own."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from shanty.collectives import elastic
from shanty.collectives.elastic import ObjectState, State

Result = TypeVar("Result")


def run_fn(func: Callable[..., Result], reset: Callable[[], object]) -> Callable[..., Result]:
    """As a framework's `elastic.run`; `reset` ends Horovod and starts it again."""
    form = elastic.Format(load=_load, save=pickle.dump)
    if "torch" in sys.modules:  # whose tensors may be in the state
        form = import_module("shanty.torch.elastic").FORMAT
    return elastic.run_fn(func, reset, form)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


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
