"""Computes metrics over the rows of all ranks: custom metrics, and LightGBM's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shanty import _metrics
from shanty.lightgbm import network
from shanty.lightgbm.errors import DataError

Metric = Callable[[Any, Any], Any]


def over_ranks(feval: Any) -> Any:
    """A metric, or each of a list, as a mean over the rows of all ranks.

    Where it asks the dataset for its weights, a rank's value counts by their sum. An exception in
    it is raised on its rank, and DataError with the number of that rank on the others.
    """
    if isinstance(feval, (list, tuple)):
        return [over_ranks(each) for each in feval]
    return feval if feval is None or network.size() == 1 else _over_ranks(feval)


def _over_ranks(metric: Metric) -> Metric:
    def mean(guess: Any, data: Any) -> list[_metrics.Result]:
        own: Exception | None = None
        try:
            share = _metrics.share(metric, guess, data, data.num_data())
        except Exception as error:  # noqa: BLE001 (raised below, once the others know)
            own, share = error, _metrics.failed(network.rank(), error)
        found, failure = _metrics.mean(network.gather(share))
        if own is not None:
            raise own
        if failure:
            raise DataError(failure)
        return found

    return mean


class Means:
    """The callback that makes metrics the same on all ranks, before any other one sees them.

    They are means over the ranks: by the weights of their rows, or by rows without weights; metrics
    of rankings by groups.
    """

    before_iteration = False

    def __init__(self) -> None:
        self.order = -math.inf  # LightGBM numbers a callback without an order below 0
        self._counts: list[dict[str, tuple[float, float]]] = []  # of each rank

    def __call__(self, env: Any) -> None:
        """Replaces this rank's values."""
        results = env.evaluation_result_list or []
        if not self._counts:
            self._counts = network.gather(_counts(env.model))
        every = network.gather([tuple(each[:3]) for each in results])
        names = [[each[:2] for each in theirs] for theirs in every]
        if any(theirs != names[0] for theirs in names):
            raise DataError("the ranks evaluate different data: give all the same valid_sets")
        for at, each in enumerate(results):
            data, metric = each[0], each[1]
            grouped = metric.startswith(("ndcg@", "map@"))
            weights = [counts[data][grouped] for counts in self._counts]
            value = _mean(metric, [theirs[at][2] for theirs in every], weights)
            fields = getattr(each, "_fields", ())
            if fields:  # LightGBM 4.7
                values = {name: getattr(each, name) for name in fields}
                results[at] = type(each)(**{**values, fields[2]: value})
            else:
                results[at] = (data, metric, value, *each[3:])


def _mean(metric: str, values: list[float], weights: list[float]) -> float:
    """The value of all ranks' rows; the mean of the ranks' values if it is not a mean over rows."""
    if metric == "gamma_deviance":  # a sum
        return math.fsum(values)
    whole = sum(weights)
    if not whole:
        return math.nan
    counted = [
        (value, weight / whole) for value, weight in zip(values, weights, strict=True) if weight
    ]
    if metric == "rmse":
        return math.sqrt(sum(value * value * part for value, part in counted))
    return float(sum(value * part for value, part in counted))


def _counts(booster: Any) -> dict[str, tuple[float, float]]:
    """For each set that is evaluated, the sum of its weights and the sum over its groups.

    Without weights, the numbers of rows and groups.
    """
    sets = [(booster._train_data_name, booster.train_set)]
    sets += zip(booster.name_valid_sets, booster.valid_sets, strict=True)
    found = {}
    for name, each in sets:
        if each is None:
            continue
        weights, groups = each.get_weight(), each.get_group()
        rows = float(each.num_data())
        whole = rows if weights is None else float(np.sum(weights, dtype=np.float64))
        grouped = whole
        if groups is not None and len(groups):
            grouped = float(len(groups))
            if weights is not None:  # a group's is the mean of its rows'
                begins = np.concatenate([[0], np.cumsum(groups)[:-1]])
                grouped = float((np.add.reduceat(weights, begins) / groups).sum())
        found[name] = (whole, grouped)
    return found
