"""Averages a custom metric over the rows of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shanty import _metrics
from shanty.xgboost.communication import Communicator
from shanty.xgboost.consensus import Consensus
from shanty.xgboost.errors import DataError

Metric = Callable[[Any, Any], Any]
_DONE = "is_over_ranks"


def over_ranks(metric: Metric | None, ranks: Communicator) -> Metric | None:
    """The metric, as a mean over the rows of all ranks.

    A rank without rows contributes nothing; the metric is not called there. Where the metric asks
    the matrix for its weights, a rank's value counts by their sum. An exception in the metric is
    raised on its rank, and DataError with the number of that rank on the others.
    """
    if metric is None or ranks.size == 1 or hasattr(metric, _DONE):
        return metric

    def mean(guess: Any, matrix: Any) -> list[_metrics.Result]:
        own: Exception | None = None
        share = _metrics.NOTHING
        try:
            if matrix.num_row():
                share = _metrics.share(metric, guess, matrix, matrix.num_row())
        except Exception as error:  # noqa: BLE001 (raised below, once the others know)
            own, share = error, _metrics.failed(ranks.rank, error)
        consensus = Consensus(ranks, "custom metric")
        found, failure = consensus.conclude(share, own is not None, _metrics.mean)
        if own is not None:
            raise own
        if failure:
            raise DataError(failure)
        return found

    setattr(mean, _DONE, True)
    return mean
