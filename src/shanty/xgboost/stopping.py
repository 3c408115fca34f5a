"""Ends training on all ranks after the same round, or fails if the callbacks decide differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shanty.xgboost.communication import Communicator
from shanty.xgboost.errors import DataError
from shanty.xgboost.installed import xgboost


class Stopping(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Calls the caller's callbacks, and compares between the ranks whether they stop the training.

    A rank that stops alone would leave the others waiting for its rows. All ranks raise DataError
    if some of them stop after a round and others do not. Without callbacks on any rank, nothing is
    sent.
    """

    def __init__(self, callbacks: Sequence[Any] | None, ranks: Communicator) -> None:
        super().__init__()
        self._callbacks = list(callbacks or ())
        self._ranks = ranks
        self._compares = False

    def before_training(self, model: Any) -> Any:
        """Call each callback."""
        self._compares = bool(self._asks(bool(self._callbacks)))
        for each in self._callbacks:
            model = each.before_training(model)
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Whether training stops before this round."""
        stops = [each.before_iteration(model, epoch, evals_log) for each in self._callbacks]
        return self._agreed(any(stops), f"before round {epoch}")

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Whether training stops after this round."""
        stops = [each.after_iteration(model, epoch, evals_log) for each in self._callbacks]
        return self._agreed(any(stops), f"after round {epoch}")

    def after_training(self, model: Any) -> Any:
        """Call each callback."""
        for each in self._callbacks:
            model = each.after_training(model)
        return model

    def _agreed(self, stops: bool, when: str) -> bool:
        if not self._compares:
            return stops
        those = self._asks(stops)
        if 0 < len(those) < self._ranks.size:
            others = [rank for rank in range(self._ranks.size) if rank not in those]
            raise DataError(
                f"A callback stops the training {when} on rank {those[0]}, but not on rank "
                f"{others[0]}. Give all ranks the same callbacks, which decide by the same values."
            )
        return stops

    def _asks(self, answer: bool) -> list[int]:
        """Returns the ranks whose answer is yes."""
        if self._ranks.size == 1:
            return [0] if answer else []
        answers = np.zeros(self._ranks.size, np.int32)
        answers[self._ranks.rank] = answer
        answers = xgboost.collective.allreduce(answers, xgboost.collective.Op.SUM)
        return [int(rank) for rank in np.flatnonzero(answers)]
