"""Ends training on all ranks after the same round, or fails if the callbacks decide differently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shanty.lightgbm import network
from shanty.lightgbm.errors import DataError
from shanty.lightgbm.installed import lightgbm


def together(callbacks: Sequence[Any] | None) -> list[Any]:
    """Returns the callbacks, so that they stop the training on all ranks or on none.

    A rank that stops alone would leave the others waiting for it. All ranks raise DataError if some
    of them stop after a round and others do not, or stop with another best round. All ranks call
    it; if none has callbacks, nothing is compared later.
    """
    own = list(callbacks or ())
    if network.size() == 1 or not any(network.gather(bool(own))):
        return own
    decision = _Decision()
    return [*(_Callback(each, decision) for each in own), decision]


class _Decision:
    """The last callback of a round: stops the training if the callbacks of all ranks do."""

    before_iteration = False

    def __init__(self) -> None:
        self.order = math.inf
        self.stop: Any = None  # the EarlyStopException of this rank's callbacks in this round

    def __call__(self, env: Any) -> None:
        stop, self.stop = self.stop, None
        best = network.gather(None if stop is None else stop.best_iteration)
        for rank, each in enumerate(best):
            if each == best[0]:
                continue
            if best[0] is None:
                where = f"on rank {rank}, but not on rank 0"
            elif each is None:
                where = f"on rank 0, but not on rank {rank}"
            else:
                where = f"with best round {best[0]} on rank 0, and {each} on rank {rank}"
            raise DataError(
                f"callbacks stop the training after round {env.iteration} {where}: give all ranks "
                "the same callbacks, which decide by the same values"
            )
        if stop is not None:
            raise stop


class _Callback:
    """A callback of the caller's; what stops the training waits for the end of the round."""

    def __init__(self, call: Any, decision: _Decision) -> None:
        self._call, self._decision = call, decision
        self.before_iteration = getattr(call, "before_iteration", False)
        if hasattr(call, "order"):
            self.order = call.order

    def __call__(self, env: Any) -> None:
        try:
            self._call(env)
        except lightgbm.callback.EarlyStopException as stop:
            if self.before_iteration:
                raise
            self._decision.stop = self._decision.stop or stop
