"""XGBoost's scikit-learn classes, trained by all ranks on the rows that each of them has.

`fit` is called by all ranks, each with its share of the rows (and of the rows to evaluate on).
All of them get the same model; `predict` and all else are of one rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shanty.xgboost.errors import DataError
from shanty.xgboost.exchange import Meeting, together
from shanty.xgboost.installed import xgboost
from shanty.xgboost.training import Report, save_model
from shanty.xgboost.world import blaming_the_lost, current


@contextmanager
def _reported(model: Any, X: Any, y: Any, options: Mapping[str, Any]) -> Iterator[None]:  # noqa: N803
    """Train within XGBoost's world, and tell the run of the rounds."""
    _compare_lengths(X, y, options)
    before = model.callbacks
    model.callbacks = [*(before or ()), Report(model.get_num_boosting_rounds())]
    try:
        with blaming_the_lost():
            yield
    finally:
        model.callbacks = before


@contextmanager
def _joined(X: Any, y: Any, options: Mapping[str, Any]) -> Iterator[None]:  # noqa: N803
    """Train within XGBoost's world; of a forest, which is a single round, nothing is told."""
    _compare_lengths(X, y, options)
    with blaming_the_lost():
        yield


def _compare_lengths(X: Any, y: Any, options: Mapping[str, Any]) -> None:  # noqa: N803
    """DataError on all ranks where one rank's rows and labels do not fit: XGBoost finds that out
    on one rank only, for which the others would wait."""

    def look(_: Meeting) -> None:
        rows = _length(X)
        for name, value in (("y", y), ("sample_weight", options.get("sample_weight"))):
            if value is not None and _length(value) != rows:
                raise DataError(f"X has {rows} rows, but {name} {_length(value)}.")

    together(current(), "fit", look, lambda _: None)


def _length(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


class _Saving:
    """What all of these classes do otherwise than XGBoost's."""

    def save_model(self, fname: str | os.PathLike[str]) -> None:
        """Write the model, on rank 0; all ranks call it."""
        save_model(self, fname)


class XGBRegressor(_Saving, xgboost.XGBRegressor):  # type: ignore[misc]
    """XGBoost's regressor over all ranks."""

    def fit(self, X: Any, y: Any, **options: Any) -> XGBRegressor:  # noqa: N803
        """Train on the rows of all ranks; X and y are this rank's."""
        with _reported(self, X, y, options):
            super().fit(X, y, **options)
        return self


class XGBRFRegressor(_Saving, xgboost.XGBRFRegressor):  # type: ignore[misc]
    """XGBoost's random forest for regression over all ranks."""

    def fit(self, X: Any, y: Any, **options: Any) -> XGBRFRegressor:  # noqa: N803
        """Train on the rows of all ranks; X and y are this rank's."""
        with _joined(X, y, options):
            super().fit(X, y, **options)
        return self


class XGBRanker(_Saving, xgboost.XGBRanker):  # type: ignore[misc]
    """XGBoost's ranker over all ranks. A group (qid) is on one rank."""

    def fit(self, X: Any, y: Any, **options: Any) -> XGBRanker:  # noqa: N803
        """Train on the groups of all ranks; X, y and what is told of them are this rank's."""
        with _reported(self, X, y, options):
            super().fit(X, y, **options)
        return self


class _Classes(_Saving):
    """The classes of all ranks, which XGBoost would look for among the rows of this one."""

    _own: NDArray[np.generic] | None = None  # while it trains: the classes of this rank's rows
    _all = 0

    @property
    def classes_(self) -> NDArray[np.generic]:
        """0, 1, …: the classes of all ranks' rows."""
        return self._own if self._own is not None else np.arange(self.n_classes_)

    @property
    def n_classes_(self) -> int:
        """How many classes there are."""
        if not self._all:
            raise AttributeError("n_classes_: fit has not been called")
        return self._all

    @n_classes_.setter
    def n_classes_(self, number: int) -> None:
        if self._own is None:  # a model that is loaded
            self._all = number

    def _agree(self, y: Any) -> None:
        def look(_: Meeting) -> NDArray[np.generic]:
            self._own = np.unique(np.asarray(y))
            return self._own

        def judge(seen: list[NDArray[np.generic]]) -> int:
            told = [each for each in seen if len(each)]
            if not told:
                raise DataError("y has no rows, on any rank.")
            classes = np.unique(np.concatenate(told))
            if not np.array_equal(classes, np.arange(len(classes))):
                raise DataError(
                    f"The classes in y are {classes.tolist()}, over all ranks; XGBoost counts "
                    f"them 0 … {len(classes) - 1}. Number them so (sklearn's LabelEncoder does, "
                    "fitted on all rows)."
                )
            return len(classes)

        self._all = together(current(), "fit", look, judge)


class XGBClassifier(_Classes, xgboost.XGBClassifier):  # type: ignore[misc]
    """XGBoost's classifier over all ranks; a rank need not have rows of every class."""

    def fit(self, X: Any, y: Any, **options: Any) -> XGBClassifier:  # noqa: N803
        """Train on the rows of all ranks; X and y are this rank's."""
        with _reported(self, X, y, options):
            try:
                self._agree(y)
                super().fit(X, y, **options)
            finally:
                self._own = None
        return self


class XGBRFClassifier(_Classes, xgboost.XGBRFClassifier):  # type: ignore[misc]
    """XGBoost's random forest for classification over all ranks."""

    def fit(self, X: Any, y: Any, **options: Any) -> XGBRFClassifier:  # noqa: N803
        """Train on the rows of all ranks; X and y are this rank's."""
        with _joined(X, y, options):
            try:
                self._agree(y)
                super().fit(X, y, **options)
            finally:
                self._own = None
        return self
