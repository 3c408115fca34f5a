"""scikit-learn's classes of LightGBM, trained over all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from shanty.lightgbm import network
from shanty.lightgbm.columns import joined
from shanty.lightgbm.errors import DataError
from shanty.lightgbm.installed import lightgbm
from shanty.lightgbm.metric import over_ranks
from shanty.lightgbm.stopping import together
from shanty.lightgbm.training import agree, parameters, reports, same_model

_GIVEN = ("sample_weight", "group", "init_score", "init_model")
_OF_COLUMNS = ("feature_name", "categorical_feature")
_coding = threading.Lock()  # the module's coder is one for all threads


class _Distributed:
    """What the classes share: `fit` gets this rank's rows; all ranks get the same model."""

    @network.leaving_together()
    def fit(self, X: Any, y: Any, *args: Any, callbacks: Any = None, **options: Any) -> Any:  # noqa: N803
        """As LightGBM's, by all ranks; X, y and the like are this rank's rows."""
        network.init()
        own: Any = self
        evals = options.get("eval_set") or []
        evals = [evals] if isinstance(evals, tuple) else list(evals)
        given: dict[str, Any] = {name: options.get(name) is not None for name in _GIVEN}
        given |= {name: options.get(name, "auto") for name in _OF_COLUMNS}
        tables = [X, *(each for each, _ in evals)]
        agree({**own.get_params(), **given}, own.n_estimators, tables)
        rows = joined(X)
        if evals:
            options["eval_set"] = [(rows if each is X else each, labels) for each, labels in evals]
        if options.get("eval_X") is X:
            options["eval_X"] = rows
        balanced = getattr(own, "class_weight", None) == "balanced" and network.size() > 1
        with _over_ranks():
            if balanced:
                own.class_weight = _balance(y)
            try:
                super().fit(rows, y, *args, callbacks=[*reports(), *together(callbacks)], **options)  # type: ignore[misc]
            finally:
                if balanced:
                    own.class_weight, own._class_weight = "balanced", None
        own._Booster = same_model(own._Booster, own._process_params(stage="fit"))
        return self

    def _process_params(self, stage: str) -> dict[str, Any]:
        values: dict[str, Any] = super()._process_params(stage=stage)  # type: ignore[misc]
        return parameters(values) if stage == "fit" else values


def _balance(y: Any) -> dict[Any, float]:
    """The weights with which all classes count the same over the rows of all ranks."""
    counts: Counter[Any] = Counter()
    for each in network.gather(Counter(np.asarray(y).ravel().tolist())):
        counts.update(each)
    return {kind: counts.total() / (len(counts) * count) for kind, count in counts.items()}


def _classes(seen: list[Any]) -> Any:
    """The classes of all ranks' labels."""
    texts = [each.dtype.kind in "OSUT" for each in seen]
    for rank, is_text in enumerate(texts):
        if is_text != texts[0]:  # NumPy would make texts of the numbers
            raise DataError(
                f"the labels are of type {seen[0].dtype} on rank 0 and {seen[rank].dtype} on rank "
                f"{rank}: give them the same type on all ranks"
            )
    return np.unique(np.concatenate(seen))


@contextlib.contextmanager
def _over_ranks() -> Iterator[None]:
    """Count classes over all ranks, and average the caller's own metrics.

    The rows of one rank may lack some classes.
    """
    encoder = getattr(lightgbm.sklearn, "_LGBMLabelEncoder", None)
    metric = lightgbm.sklearn._EvalFunctionWrapper
    if encoder is None or network.size() == 1:
        yield
        return
    kinds: list[Any] = []

    class OverRanks(encoder):  # type: ignore[misc, valid-type]
        def fit(self, y: Any) -> Any:
            if not kinds:
                kinds.append(_classes(network.gather(np.unique(y))))
            return super().fit(kinds[0])

    with _coding:
        lightgbm.sklearn._LGBMLabelEncoder = OverRanks
        lightgbm.sklearn._EvalFunctionWrapper = lambda func: over_ranks(metric(func))
        try:
            yield
        finally:
            lightgbm.sklearn._LGBMLabelEncoder = encoder
            lightgbm.sklearn._EvalFunctionWrapper = metric


class LGBMClassifier(_Distributed, lightgbm.LGBMClassifier):  # type: ignore[misc]
    """lightgbm.LGBMClassifier over all ranks."""


class LGBMRegressor(_Distributed, lightgbm.LGBMRegressor):  # type: ignore[misc]
    """lightgbm.LGBMRegressor over all ranks."""


class LGBMRanker(_Distributed, lightgbm.LGBMRanker):  # type: ignore[misc]
    """lightgbm.LGBMRanker over all ranks; `group` is of this rank's rows."""
