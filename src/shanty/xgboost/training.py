"""Trains and cross-validates over all ranks, and saves the model on one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import shanty
from shanty.runtime.rundir import RUN_DIR
from shanty.xgboost import elastic
from shanty.xgboost.agreement import agree, same_model
from shanty.xgboost.communication import Communicator, current, leaving_together
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import DataError
from shanty.xgboost.installed import xgboost
from shanty.xgboost.metric import over_ranks
from shanty.xgboost.stopping import Stopping


class Report(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Sends the rounds to the run: how many of `rounds` are done, and the metrics of each.

    Rank 0 does it; nothing happens without a run. `train`, `cv` and the estimators add one.
    """

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._rounds = rounds
        self._bar: Iterator[int] | None = None

    def before_training(self, model: Any) -> Any:
        """Begins the bar."""
        if RUN_DIR in os.environ and xgboost.collective.get_rank() == 0:
            self._bar = shanty.progress(range(self._rounds), label="rounds")
            next(self._bar, None)
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Reports a round."""
        if self._bar is not None:
            values = {}
            for data, metrics in evals_log.items():
                for metric, history in metrics.items():
                    last = history[-1]  # of cv it is (mean, deviation)
                    values[f"{data}-{metric}"] = last[0] if isinstance(last, tuple) else last
            if values:
                shanty.log(round=epoch, **values)
            next(self._bar, None)
        return False

    def after_training(self, model: Any) -> Any:
        """Ends the bar, where it stands."""
        self._bar = None
        return model


def train(
    params: dict[str, Any],
    dtrain: Any,
    num_boost_round: int = 10,
    *,
    callbacks: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """xgboost.train by all ranks; each gets the whole model, the same.

    Metrics cover the rows of all ranks, so early stopping ends all ranks at the same round. A
    `custom_metric` is a mean over the ranks, by their rows, or by their weights where it asks the
    matrix for them; it is not called where a rank has no rows to evaluate on. Raises DataError
    where the ranks' parameters, columns or categories differ, or callbacks stop some ranks only,
    and WorldError if another rank is lost meanwhile, or the ranks have trained different models.
    """
    ranks = current()
    options["evals"] = evals = list(options.get("evals") or ())
    matrices = {"dtrain": dtrain, **{f"evals {name!r}": each for each, name in evals}}
    agree(ranks, params, {"num_boost_round": num_boost_round, **_of_all(options)}, matrices)
    options["custom_metric"] = over_ranks(options.get("custom_metric"), ranks)
    report = Report(num_boost_round)
    with leaving_together(ranks):
        if elastic.is_elastic():
            each_round = [*(callbacks or ()), report]
            booster = elastic.train(
                params, dtrain, num_boost_round, callbacks=each_round, **options
            )
        else:
            each_round = [Stopping(callbacks, ranks), report]
            booster = xgboost.train(
                params, dtrain, num_boost_round, callbacks=each_round, **options
            )
    for what in ("feature_names", "feature_types"):
        if getattr(booster, what) is None:  # XGBoost takes none from a matrix without rows
            setattr(booster, what, getattr(dtrain, what))
    if not elastic.is_elastic():
        same_model(ranks, booster)
    return booster


def cv(
    params: dict[str, Any],
    dtrain: Any,
    num_boost_round: int = 10,
    *,
    nfold: int = 3,
    stratified: bool = False,
    folds: Any = None,
    seed: int = 0,
    shuffle: bool = True,
    callbacks: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """xgboost.cv over the rows of all ranks: each fold is one part of every rank's rows.

    A model is trained and tested by all ranks; what comes out is the same on all of them. Which row
    is in which fold depends on the number of ranks. stratified: each class is dealt out evenly.
    folds: (training rows, test rows) of this rank, for each fold. Groups of a ranking stay whole;
    each rank then needs nfold of them.
    """
    if folds is None and nfold < 2:
        raise DataError(f"cv needs at least two folds, not nfold={nfold}.")
    ranks = current()
    each_round = [Stopping(callbacks, ranks), Report(num_boost_round)]
    options |= {"callbacks": each_round, "nfold": nfold}
    options |= {"seed": seed, "shuffle": shuffle}
    if ranks.size == 1:
        options |= {"stratified": stratified, "folds": folds}
        return xgboost.cv(params, dtrain, num_boost_round, **options)
    call = {"num_boost_round": num_boost_round, "nfold": nfold, "stratified": stratified}
    call |= {"shuffle": shuffle, "folds": folds is not None}
    agree(ranks, params, {**call, **_of_all(options)}, {"dtrain": dtrain})
    options["custom_metric"] = over_ranks(options.get("custom_metric"), ranks)
    groups = together(
        ranks,
        "cv",
        lambda _: max(len(dtrain.get_uint_info("group_ptr")) - 1, 0),
        lambda numbers: _enough(numbers, nfold),
    )
    if folds is None and not groups:
        labels = dtrain.get_label() if stratified else None
        folds = _folds(ranks, dtrain.num_row(), labels, nfold, seed, shuffle)
    # XGBoost refuses cv among several ranks in the place where it averages a metric over them.
    # The metrics of a fold already cover all ranks.
    with (
        mock.patch.object(xgboost.callback, "_allreduce_metric", _averaged),
        leaving_together(ranks),
    ):
        return xgboost.cv(params, dtrain, num_boost_round, folds=folds, **options)


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Saves a Booster, or an estimator, once: rank 0 writes it, whole or not at all.

    All ranks call it, and the file exists when it returns. All ranks raise DataError if it cannot
    be written. As in XGBoost, the suffix chooses the format: .json or .ubj.
    """
    ranks = current()

    def write(_: object) -> None:
        if ranks.rank == 0:
            whole = Path(path)
            part = whole.with_name(f".{os.getpid()}.{whole.name}")
            try:
                if isinstance(model, xgboost.XGBModel):  # its class may be one of ours
                    xgboost.XGBModel.save_model(model, part)
                else:
                    model.save_model(part)
                part.replace(whole)
            finally:
                part.unlink(missing_ok=True)

    together(ranks, f"saving {path}", write, lambda _: None)


# ---- within ------------------------------------------------------------------------------------


def _of_all(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that all ranks must have alike, or all must have or lack."""
    whole = ("early_stopping_rounds", "maximize", "metrics")
    there = ("obj", "custom_metric", "xgb_model", "fpreproc")
    return {
        **{name: options.get(name) for name in whole},
        **{name: options.get(name) is not None for name in there},
    }


def _averaged(score: Any) -> Any:
    """A metric's mean over the ranks; of cv, mean and deviation."""
    values = np.atleast_1d(np.asarray(score, np.float64))
    summed = xgboost.collective.allreduce(values, xgboost.collective.Op.SUM)
    mean = summed / xgboost.collective.get_world_size()
    return tuple(mean.tolist()) if isinstance(score, tuple) else mean[0]


def _enough(groups: list[int], nfold: int) -> int:
    """The least number of groups; DataError where a rank has too few of them for the folds."""
    if any(groups) and min(groups) < nfold:
        raise DataError(
            f"cv needs nfold={nfold} groups on each rank, but rank {groups.index(min(groups))} has "
            f"{min(groups)}. Take fewer folds, or fewer ranks."
        )
    return min(groups)


def _folds(
    ranks: Communicator,
    rows: int,
    labels: NDArray[np.float32] | None,
    nfold: int,
    seed: int,
    shuffle: bool,
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """This rank's rows to train on and to test on, for each fold.

    Rows are dealt out in turn, class by class, and each rank begins with another fold.
    """
    chance = np.random.default_rng([seed, ranks.rank])
    order = chance.permutation(rows) if shuffle or labels is not None else np.arange(rows)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    if labels is not None or shuffle:
        fold = (np.arange(rows) + ranks.rank) % nfold
    else:
        fold = np.arange(rows) * nfold // max(rows, 1)
    return [(np.sort(order[fold != each]), np.sort(order[fold == each])) for each in range(nfold)]
