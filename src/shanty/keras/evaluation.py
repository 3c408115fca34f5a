"""Metrics over the samples of all ranks, each of which counts the same.

Keras computes metrics from sums. The sums of all ranks are added up, and the metrics computed from
the totals. So the results are those of one process with all samples, even if the ranks have
different numbers of samples. Custom metrics whose variables are not sums stay wrong.
"""

from __future__ import annotations

from typing import Any

from shanty.collectives import array_calls
from shanty.collectives.process_sets import global_process_set
from shanty.collectives.request import Op
from shanty.keras import variables


def evaluate(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what `model.evaluate` would of the data of all ranks. Takes the same arguments.

    Each rank passes its own part of the data (see `shard`), however large. All must call it.
    """
    as_dict = kwargs.pop("return_dict", False)
    found = model.evaluate(*args, return_dict=True, **kwargs)
    found.update({name: value for name, value in results(model).items() if name in found})
    if as_dict:
        return found
    if hasattr(model, "_flatten_metrics_in_order"):
        return model._flatten_metrics_in_order(found)
    # In the order of Keras: metrics by their names as the model has them, then the others.
    known = [metric.name for metric in model.metrics if metric.name in found]
    names = [*known, *sorted(set(found) - set(known))]
    return found[names[0]] if len(names) == 1 else [found[name] for name in names]


def results(model: Any) -> dict[str, float]:
    """Return the metrics of what all ranks have seen since these were reset, by their names."""
    variables.settle(model)
    states = [each for metric in model.metrics for each in metric.variables]
    before = variables.read(states)
    if not states:
        return {}
    how = Op.SUM, 1.0, 1.0, global_process_set, True
    request = array_calls.allreduce(before, "metrics", *how)
    variables.write(states, array_calls.done(request, global_process_set))
    try:
        if hasattr(model, "get_metrics_result"):
            found = model.get_metrics_result()
        else:
            found = {metric.name: metric.result() for metric in model.metrics}
    finally:
        variables.write(states, before)
    return {name: float(value) for name, value in found.items()}
