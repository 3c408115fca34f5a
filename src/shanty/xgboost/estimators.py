"""XGBoost's scikit-learn classes, trained by all ranks on the rows that each of them has.

All ranks call `fit`, each with its share of the rows (and of the rows to evaluate on), and get the
same model. `predict` and all other methods work on one rank.
"""

from __future__ import annotations

import os
from typing import Any, Self
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost import elastic
from shanty.xgboost.agreement import Facts, compare, of_parameters, same_model
from shanty.xgboost.columns import shared
from shanty.xgboost.communication import Communicator, current, leaving_together
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import DataError
from shanty.xgboost.installed import xgboost
from shanty.xgboost.metric import over_ranks
from shanty.xgboost.stopping import Stopping
from shanty.xgboost.training import Report, save_model

_OF_ROWS = ("sample_weight", "base_margin", "qid", "group")


def ready(
    ranks: Communicator,
    model: Any,
    X: Any,  # noqa: N803
    y: Any,
    options: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """The rows and options of a `fit`, so that they mean the same on all ranks.

    DataError on all ranks if one rank's rows and labels do not fit together, which XGBoost notices
    on that rank only while the others wait, and if parameters or columns differ.
    """

    def look(_: object) -> list[Facts]:
        rows = _length(X)
        for name, value in (("y", y), ("sample_weight", options.get("sample_weight"))):
            if value is not None and _length(value) != rows:
                raise DataError(f"X has {rows} rows, but {name} {_length(value)}.")
        for qid in (options.get("qid"), *(options.get("eval_qid") or ())):
            ids = np.asarray([] if qid is None else qid)
            if (ids[1:] < ids[:-1]).any():
                raise DataError("qid is not sorted. Sort the rows and their labels by qid.")
        facts = of_parameters({**model.get_params(), "callbacks": None})
        # XGBoost reuses the matrix of X and y; a rank that makes another would wait for the others.
        evals = [
            f"({'X' if each is X else '…'}, {'y' if labels is y else '…'})"
            for each, labels in options.get("eval_set") or ()
        ]
        facts["eval_set"] = ", ".join(evals) or "none"
        given = {name: "given" for name in _OF_ROWS if options.get(name) is not None}
        if isinstance(model, xgboost.XGBClassifier) and not isinstance(model, _Classes):
            facts["the classes in y"] = str(np.unique(np.asarray(y)).tolist())
        return [facts, {"X": "given", **given} if rows else {}]

    together(ranks, "fit", look, compare)
    alike = model.get_params()
    rows = shared(ranks, X, alike)
    if options.get("eval_set"):
        evals = [
            (rows if each is X else shared(ranks, each, alike), labels)
            for each, labels in options["eval_set"]
        ]
        options = {**options, "eval_set": evals}
    return rows, options


def _length(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


class OverRanks:
    """Trains on the rows of all ranks; stands before XGBoost's class among the bases."""

    _is_forest = False  # one round, which is not reported to the run
    callbacks: Any

    def fit(self, X: Any, y: Any, **options: Any) -> Self:  # noqa: N803
        """Trains on the rows of all ranks; X, y and the options are this rank's."""
        ranks = current()
        own: Any = self
        rows, options = ready(ranks, own, X, y, options)
        before = self.callbacks
        lasts = elastic.is_elastic()
        train = elastic.train if lasts else xgboost.sklearn.train
        if not self._is_forest:
            own_calls = before or () if lasts else [Stopping(before, ranks)]
            self.callbacks = [*own_calls, Report(self.get_num_boosting_rounds())]  # type: ignore[attr-defined]
        try:
            with leaving_together(ranks), mock.patch.object(xgboost.sklearn, "train", train):
                super().fit(rows, y, **options)  # type: ignore[misc]
        finally:
            self.callbacks = before
        if not lasts:
            same_model(ranks, own.get_booster())
        return self

    def _configure_fit(self, *args: Any, **options: Any) -> Any:
        """As XGBoost's, but a custom metric is a mean over the rows of all ranks."""
        model, metric, *others = super()._configure_fit(*args, **options)  # type: ignore[misc]
        return model, over_ranks(metric, current()), *others

    def save_model(self, fname: str | os.PathLike[str]) -> None:
        """Writes the model, on rank 0; all ranks call it."""
        save_model(self, fname)


class _Classes(OverRanks):
    """The classes of all ranks, which XGBoost would look for among the rows of this one."""

    _own: NDArray[np.generic] | None = None  # while it trains: the classes of this rank's rows
    _all = 0

    @property
    def classes_(self) -> NDArray[np.generic]:
        """0, 1, …: the classes of all ranks' rows."""
        return self._own if self._own is not None else np.arange(self.n_classes_)

    @property
    def n_classes_(self) -> int:
        """The number of classes."""
        if not self._all:
            raise AttributeError("n_classes_: fit has not been called")
        return self._all

    @n_classes_.setter
    def n_classes_(self, number: int) -> None:
        if self._own is None:  # a model that is loaded
            self._all = number

    def fit(self, X: Any, y: Any, **options: Any) -> Self:  # noqa: N803
        """Trains on the rows of all ranks, once they agree on the classes."""

        def look(_: object) -> NDArray[np.generic]:
            self._own = np.unique(np.asarray(y))
            return self._own

        def combine(seen: list[NDArray[np.generic]]) -> int:
            there = [each for each in seen if len(each)]
            if not there:
                raise DataError("y has no rows on any rank.")
            classes = np.unique(np.concatenate(there))
            if not np.array_equal(classes, np.arange(len(classes))):
                raise DataError(
                    f"The classes in y are {classes.tolist()} over all ranks, but XGBoost expects "
                    f"0 … {len(classes) - 1}. Number them like this, for example with sklearn's "
                    "LabelEncoder fitted on all rows."
                )
            return len(classes)

        try:
            self._all = together(current(), "fit", look, combine)
            return super().fit(X, y, **options)
        finally:
            self._own = None


class XGBRegressor(OverRanks, xgboost.XGBRegressor):  # type: ignore[misc]
    """XGBoost's regressor over all ranks."""


class XGBRFRegressor(OverRanks, xgboost.XGBRFRegressor):  # type: ignore[misc]
    """XGBoost's random forest for regression over all ranks."""

    _is_forest = True


class XGBRanker(OverRanks, xgboost.XGBRanker):  # type: ignore[misc]
    """XGBoost's ranker over all ranks. A group (qid) is on one rank."""


class XGBClassifier(_Classes, xgboost.XGBClassifier):  # type: ignore[misc]
    """XGBoost's classifier over all ranks; a rank need not have rows of every class."""


class XGBRFClassifier(_Classes, xgboost.XGBRFClassifier):  # type: ignore[misc]
    """XGBoost's random forest for classification over all ranks."""

    _is_forest = True
