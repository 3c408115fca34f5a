"""Replaces XGBoost's functions and methods with versions that accept the calls of old scripts.

Each gives arguments that were passed by position, or by an old name, their current names, and calls
the current function. Each change is reported once, in a warning on rank 0.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xgboost
from xgboost import collective

from shanty.compat.xgboost_rabit.parameters import modern
from shanty.xgboost.agreement import same_model
from shanty.xgboost.communication import current, is_initialized
from shanty.xgboost.metric import over_ranks
from shanty.xgboost.training import cv as cv_over_ranks
from shanty.xgboost.training import train as train_over_ranks

Arguments = dict[str, Any]

# The arguments that could come by position, in the order of XGBoost 0.72 to 1.5.
TRAIN = (
    *("evals", "obj", "feval", "maximize", "early_stopping_rounds", "evals_result"),
    *("verbose_eval", "xgb_model", "callbacks", "learning_rates"),
)
CV = (
    *("nfold", "stratified", "folds", "metrics", "obj", "feval", "maximize"),
    *("early_stopping_rounds", "fpreproc", "as_pandas", "verbose_eval", "show_stdv", "seed"),
    *("callbacks", "shuffle"),
)
PREDICT = (
    *("output_margin", "ntree_limit", "pred_leaf", "pred_contribs", "approx_contribs"),
    *("pred_interactions", "validate_features", "training", "iteration_range", "strict_shape"),
)

_OURS = (str(Path(__file__).parent), str(Path(xgboost.__file__).parent))
_reported: set[str] = set()
_printed: list[str] = []


class OldNameWarning(UserWarning):
    """A script uses names of an older XGBoost, which were translated."""


def tell(notes: Sequence[str]) -> None:
    """Warn of those notes that are new, in one warning; on rank 0 only."""
    new = [note for note in dict.fromkeys(notes) if note not in _reported]
    _reported.update(new)
    if new and collective.get_rank() == 0:
        text = f"shanty: taken as today's XGBoost has it: {'; '.join(new)}."
        warnings.warn(text, OldNameWarning, stacklevel=_script_s_level() + 1)


def say(note: str) -> None:
    """Prints a note about something other than names, once in a script; for rank 0."""
    if not _printed:
        _printed.append(note)
        print(f"shanty: {note}.", file=sys.stderr, flush=True)


def _script_s_level() -> int:
    """Counts the calls from `tell` up to the script's own line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level - 1


def named(order: Sequence[str], values: Sequence[Any], names: Arguments, what: str) -> Arguments:
    """`names`, and `values` under the names that `order` gives them.

    TypeError, as Python has it, where there are too many or one is given twice.
    """
    if len(values) > len(order):
        raise TypeError(f"{what}() takes at most {len(order)} arguments of this kind")
    found = dict(zip(order, values, strict=False))
    twice = found.keys() & names.keys()
    if twice:
        raise TypeError(f"{what}() got multiple values for argument {min(twice)!r}")
    return {**found, **names}


def train(original: Callable[..., Any]) -> Callable[..., Any]:
    """`xgboost.train`, with `feval`, `learning_rates` and arguments by position."""
    ours = _over_ranks(original, train_over_ranks)

    @functools.wraps(original)
    def train(
        params: Any, dtrain: Any, num_boost_round: int = 10, *values: Any, **names: Any
    ) -> Any:
        arguments = named(TRAIN, values, names, "train")
        notes = _metric_and_direction(arguments)
        rates = arguments.pop("learning_rates", None)
        if rates is not None:
            if getattr(getattr(rates, "__code__", None), "co_argcount", 0) == 2:
                rates = functools.partial(_rate_of_round, rates, num_boost_round)
            scheduler = xgboost.callback.LearningRateScheduler(rates)
            arguments["callbacks"] = [*(arguments.get("callbacks") or ()), scheduler]
            notes.append("learning_rates= is now callbacks=[callback.LearningRateScheduler(…)]")
        tell([*notes, *modern(params, collective.get_world_size()).notes])
        return ours(params, dtrain, num_boost_round, **arguments)

    return train


def cv(original: Callable[..., Any]) -> Callable[..., Any]:
    """`xgboost.cv`, with `feval` and arguments by position."""
    ours = _over_ranks(original, cv_over_ranks)

    @functools.wraps(original)
    def cv(params: Any, dtrain: Any, num_boost_round: int = 10, *values: Any, **names: Any) -> Any:
        arguments = named(CV, values, names, "cv")
        tell(_metric_and_direction(arguments))
        return ours(params, dtrain, num_boost_round, **arguments)

    return cv


def _over_ranks(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Calls shanty's function, which then calls XGBoost's by a name that has been replaced."""
    within = False

    def call(*values: Any, **names: Any) -> Any:
        nonlocal within
        if within or not is_initialized():
            return original(*values, **names)
        within = True
        try:
            return ours(*values, **names)
        finally:
            within = False

    return call


def _metric_and_direction(arguments: Arguments) -> list[str]:
    notes = []
    if not arguments.get("maximize", True):  # it used to mean: as the metric requires
        del arguments["maximize"]
    metric = arguments.pop("feval", None)
    if metric is not None:
        arguments["custom_metric"] = metric
        notes.append(
            "feval= is now custom_metric= (and gets probabilities, where an objective of "
            "XGBoost's own makes them)"
        )
    return notes


def _rate_of_round(rates: Callable[..., float], rounds: int, round_number: int) -> float:
    return rates(round_number, rounds)


def set_param(original: Callable[..., None]) -> Callable[..., None]:
    """`Booster.set_param`, through which all training parameters pass."""

    @functools.wraps(original)
    def set_param(self: Any, params: Any, value: Any = None) -> None:
        if isinstance(params, str):
            params = [(params, value)] if value is not None else []
        today = modern(params, collective.get_world_size())
        tell(today.notes)
        original(self, today.pairs)

    return set_param


def predict(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Booster.predict`, with `ntree_limit` and arguments by position."""

    @functools.wraps(original)
    def predict(self: Any, data: Any, *values: Any, **names: Any) -> Any:
        arguments = named(PREDICT, values, names, "predict")
        _limit(arguments, self)
        return original(self, data, **arguments)

    return predict


def predict_by_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """`predict`, `predict_proba` and `apply` of the scikit-learn classes, with `ntree_limit`."""

    @functools.wraps(original)
    def predict(self: Any, *values: Any, **names: Any) -> Any:
        if "ntree_limit" in names:
            _limit(names, self.get_booster())
        return original(self, *values, **names)

    return predict


def _limit(arguments: Arguments, booster: Any) -> None:
    limit = arguments.pop("ntree_limit", None)
    if limit:  # 0 is all of them
        rounds = limit // max(1, trees_a_round(booster))
        arguments["iteration_range"] = (0, rounds)
        tell([f"ntree_limit={limit} is now iteration_range=(0, {rounds})"])


def trees_a_round(booster: Any) -> int:
    """The number of trees in a round for each class (`num_parallel_tree`); 0 of a linear model."""
    model = json.loads(booster.save_config())["learner"]["gradient_booster"]
    model = model.get("gbtree", model)  # dart has one within
    found: Mapping[str, str] = model.get("gbtree_model_param", {})
    return int(found.get("num_parallel_tree", 0))


def best_ntree_limit(model: Any) -> int:
    """`best_ntree_limit` of a Booster or a scikit-learn class; of all rounds, if none was best."""
    booster = model if isinstance(model, xgboost.Booster) else model.get_booster()
    try:
        rounds = booster.best_iteration + 1
    except AttributeError:
        rounds = booster.num_boosted_rounds()
    return int(rounds) * trees_a_round(booster)


_OF_THE_MODEL = ("early_stopping_rounds", "eval_metric", "callbacks")


def fit(original: Callable[..., Any]) -> Callable[..., Any]:
    """`fit` of the scikit-learn classes: some of its arguments are the model's today.

    They are so for this fit only, as they were.
    """

    order = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def fit(self: Any, *values: Any, **names: Any) -> Any:
        own = {name: names.pop(name) for name in _OF_THE_MODEL if name in names}
        given = {name: value for name, value in own.items() if value is not None}
        model = type(self).__name__
        tell([f"{name}= of fit is now one of {model}(…)" for name in given])
        before = {name: getattr(self, name, None) for name in given}
        try:
            for name, value in given.items():  # set_params would also change the trees it has
                setattr(self, name, value)
            return _fit_by_all(original, self, named(order, values, names, "fit"))
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    return fit


def _fit_by_all(original: Callable[..., Any], model: Any, arguments: Arguments) -> Any:
    """Calls `fit`, after all ranks have compared what must be the same."""
    if not is_initialized() or "X" not in arguments or "y" not in arguments:
        return original(model, **arguments)
    from shanty.xgboost import estimators  # which needs scikit-learn

    ranks = current()  # in another thread, each rank would make a model of its own
    if isinstance(model, estimators.OverRanks):
        return original(model, **arguments)
    options = {**arguments}
    rows, labels = options.pop("X"), options.pop("y")
    rows, options = estimators.ready(ranks, model, rows, labels, options)
    fitted = original(model, rows, labels, **options)
    same_model(ranks, model.get_booster())
    return fitted


def configure(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_configure_fit` of the scikit-learn classes: their metric is one of all ranks' rows."""

    @functools.wraps(original)
    def configure(self: Any, *values: Any, **names: Any) -> Any:
        model, metric, *others = original(self, *values, **names)
        return model, over_ranks(metric, current()) if is_initialized() else metric, *others

    return configure
