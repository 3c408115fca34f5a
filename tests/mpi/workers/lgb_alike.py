"""What all ranks must have alike to train by LightGBM; metrics of all ranks' rows. See alike.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import alike
import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
from alike import (
    LAST,
    RANK,
    SIZE,
    VALUE,
    WORLD,
    History,
    animals,
    fails_on_the_last,
    mine,
    predicts,
    values,
)
from checks import raised
from sklearn.metrics import ndcg_score
from sklearn.utils.class_weight import compute_class_weight

import shanty.lightgbm as lgb

EXACT = {
    "objective": "regression", "verbosity": -1, "min_data_per_group": 1, "cat_smooth": 0,
    "cat_l2": 0, "num_leaves": 5, "learning_rate": 0.7, "max_cat_to_onehot": 1, "num_threads": 1,
}  # fmt: skip
WHOLE = np.random.default_rng(0)
X = WHOLE.random((900, 3))
Y = X[:, 0] + 0.1 * WHOLE.random(900)
CUTS = [0, 500, 800, 900]  # uneven shares
differs = partial(alike.differs, lgb.DataError)
OWN = slice(CUTS[RANK], CUTS[RANK + 1])


def exact(booster: lightgbm.Booster, rows: pd.DataFrame) -> None:
    """The model predicts any rank's rows, whatever their categories; it is the same on all."""
    assert booster.pandas_categorical == [sorted(VALUE)]
    predicts(booster.predict, rows)


# ---- categories ----------------------------------------------------------------------------------


def check_categories_are_those_of_all_ranks() -> None:
    rows = mine()
    before = rows.copy()
    for kind in (lgb.Dataset, lightgbm.Dataset):
        booster = lgb.train(EXACT, kind(rows, values(rows)), 9)
        exact(booster, rows)
    pd.testing.assert_frame_equal(rows, before)
    folder = WORLD.bcast(tempfile.mkdtemp(), 0)
    path = Path(folder, "model.txt")
    lgb.save_model(booster, path)
    exact(lightgbm.Booster(model_file=path), rows)
    test = animals(["dog", "bee"], ["dog", "bee"])
    found: History = {}
    lgb.train(
        EXACT, lgb.Dataset(rows, values(rows)), 9, [lgb.Dataset(test, values(test))],
        callbacks=[lightgbm.record_evaluation(found)],
    )  # fmt: skip
    assert found["valid_0"]["l2"][-1] < 0.01
    model = lgb.LGBMRegressor(n_estimators=9, **{**EXACT, "num_threads": None}, n_jobs=1)
    model.fit(rows, values(rows), eval_set=[(rows, values(rows)), (test, values(test))])
    exact(model.booster_, rows)
    assert all(each["l2"][-1] < 0.01 for each in model.evals_result_.values())


def check_columns_that_differ() -> None:
    odd = RANK == LAST
    kinds = pd.Categorical(list("abc"))
    plain = pd.DataFrame({"kind": [1.0, 2.0, 3.0] if odd else kinds, "n": range(3)})
    contrary = pd.Categorical(list("abc"), list("cba" if odd else "abc"), ordered=True)
    arrow = pa.table({"kind": pa.array(list("abc")).dictionary_encode(), "n": range(3)})
    names = ["b", "a"] if odd else ["a", "b"]
    for table, *words in (
        (plain, "'kind' is a category on rank 0 and not a category on rank 2"),
        (pd.DataFrame({"kind": contrary}), "'kind'", "contradict"),
        (pd.DataFrame(X[:3, :2], columns=names), "in another order", "'a' on rank 0"),
        (arrow if odd else plain, "'kind'", "Arrow dictionary on rank 2", "to_pandas"),
    ):
        data = lgb.Dataset(table, [1, 2, 3])
        differs(data.construct, *words)
        differs(lambda table=table: lgb.LGBMRegressor().fit(table, [1, 2, 3]), *words)
    own = lightgbm.Dataset(mine(), values(mine()))
    if SIZE > 1:
        lgb.network.finalize()  # so that each makes its dataset by itself
    own.construct()
    lgb.network.init()
    differs(lambda: lgb.train(EXACT, own, 3), "different categories", "ant", "on rank 1")
    rows, labels = pd.DataFrame(X[:9]), Y[:9]
    test = lgb.Dataset(rows[::-1].T[::-1].T if odd else rows, labels)
    differs(lambda: lgb.train(EXACT, lgb.Dataset(rows, labels), 3, [test]), "in another order")


def check_what_all_ranks_must_give() -> None:
    odd, ones = RANK == LAST, np.ones(60)
    for name in ("weight", "init_score"):
        given = {name: ones} if odd else {}
        differs(lambda g=given: lgb.train(EXACT, lgb.Dataset(X[:60], Y[:60], **g), 3), name)
    given = {"sample_weight": ones} if odd else {}
    differs(lambda: lgb.LGBMRegressor().fit(X[:60], Y[:60], **given), "sample_weight", "rank 2")
    kinds = np.array(["0", "1"] * 30 if odd else [0, 1] * 30)
    differs(lambda: lgb.LGBMClassifier().fit(X[:60], kinds), "labels are of type", "on rank 2")
    train = lgb.Dataset(X[:60], Y[:60])
    empty = lgb.Dataset(X[: 0 if odd else 9], Y[: 0 if odd else 9])
    differs(lambda: lgb.train(EXACT, train, 3, [empty]), "rank 2 has no rows in valid_sets[0]")
    differs(lambda: lgb.train(EXACT, train, 3, [empty] if odd else []), "same valid_sets")
    some = {"categorical_feature": [1] if odd else [0]}
    differs(lambda: lgb.train(EXACT, lgb.Dataset(X[:60], Y[:60], **some), 3), "categorical_feature")
    differs(lambda: lgb.LGBMRegressor().fit(X[:60], Y[:60], **some), "categorical_feature")
    names = {"feature_name": [f"{'b' if odd else 'a'}{at}" for at in range(X.shape[1])]}
    differs(lambda: lgb.LGBMRegressor().fit(X[:60], Y[:60], **names), "feature_name")
    for name, value in (("linear_tree", True), ("interaction_constraints", [[0], [1]])):
        differs(lambda n=name, v=value: lgb.train({**EXACT, n: v}, train, 3), name, "one rank only")


def check_callbacks_that_stop_some_ranks_only() -> None:
    """They would leave the others waiting for this rank's rows."""

    def stops(last: int) -> Callable[[Any], None]:
        def stop(env: Any) -> None:
            if env.iteration == last:
                raise lightgbm.callback.EarlyStopException(last, [])

        return stop

    train, test = lgb.Dataset(X[OWN], Y[OWN]), lgb.Dataset(X[OWN], Y[OWN])
    early = lightgbm.early_stopping
    for own in (
        [stops(2)] if RANK == 0 else None,
        [stops(2 + RANK)],
        [early(3, verbose=False)] if RANK == 0 else None,
        [early(3, min_delta=9.0 * (RANK == 0), verbose=False)],
    ):
        words = "callbacks stop the training after round", "on rank 0", "on rank 1"
        given = {"callbacks": own, "valid_sets": [test]}
        differs(lambda given=given: lgb.train(EXACT, train, 9, **given), *words)
    model = lgb.LGBMRegressor(n_estimators=9, n_jobs=1)
    differs(lambda: model.fit(X[OWN], Y[OWN], callbacks=[stops(2 + RANK)]), *words)
    booster = lgb.train(EXACT, train, 9, callbacks=[stops(2)])
    assert (booster.best_iteration, booster.current_iteration()) == (3, 3)


# ---- metrics -------------------------------------------------------------------------------------


def misses(guess: np.ndarray, data: lightgbm.Dataset) -> tuple[str, float, bool]:
    return "misses", float(abs(guess - data.get_label()).mean()), False


def weighed(guess: np.ndarray, data: lightgbm.Dataset) -> tuple[str, float, bool]:
    error = abs(guess - data.get_label())
    return "weighed", float(np.average(error, weights=data.get_weight())), False


def check_metrics_are_those_of_all_rows() -> None:
    weights = 1 + np.arange(900) % 7
    train = lgb.Dataset(X[OWN], Y[OWN])
    test = lgb.Dataset(X[OWN], Y[OWN], weight=weights[OWN])
    found: History = {}
    seen: list[float] = []
    booster = lgb.train(
        {**EXACT, "metric": ["l1", "l2", "rmse"]}, train, 5, [test], feval=[misses, weighed],
        callbacks=[
            lambda env: seen.append(float(env.evaluation_result_list[0][2])),
            lightgbm.record_evaluation(found),
        ],
    )  # fmt: skip
    error = abs(booster.predict(X) - Y)
    last = {name: float(each[-1]) for name, each in found["valid_0"].items()}
    assert np.isclose(last["l1"], np.average(error, weights=weights))
    assert np.isclose(last["l2"], np.average(error**2, weights=weights))
    assert np.isclose(last["rmse"], np.average(error**2, weights=weights) ** 0.5)
    assert np.isclose(last["misses"], error.mean())
    assert np.isclose(last["weighed"], last["l1"])
    assert seen == found["valid_0"]["l1"]  # a callback before all others
    model = lgb.LGBMRegressor(n_estimators=5, n_jobs=1, verbose=-1)
    model.fit(
        X[OWN], Y[OWN], eval_set=[(X[OWN], Y[OWN])], eval_sample_weight=[weights[OWN]],
        eval_metric=["l1", lambda labels, guess: ("own", abs(labels - guess).mean(), False),
                     lambda labels, guess, weight: (
                         "by weights", np.average(abs(labels - guess), weights=weight), False)],
    )  # fmt: skip
    last = {name: float(each[-1]) for name, each in model.evals_result_["valid_0"].items()}
    error = abs(model.predict(X) - Y)
    assert np.isclose(last["own"], error.mean())
    assert np.isclose(last["by weights"], last["l1"])


def check_a_ranking_counts_groups() -> None:
    sizes = [[50] * 10, [100, 200], [25] * 4][RANK]
    labels = (Y * 4).astype(int)
    data = lgb.Dataset(X[OWN], labels[OWN], group=sizes)
    test = lgb.Dataset(X[OWN], labels[OWN], group=sizes)
    found: History = {}
    booster = lgb.train(
        {**EXACT, "objective": "lambdarank", "metric": "ndcg", "eval_at": [5],
         "label_gain": [0, 1, 2, 3, 4]}, data, 3, [test],
        callbacks=[lightgbm.record_evaluation(found)],
    )  # fmt: skip
    guess, at, scores = booster.predict(X), 0, []
    for size in np.concatenate(WORLD.allgather(sizes)):
        part = slice(at, at + size)
        scores.append(ndcg_score([labels[part]], [guess[part]], k=5))
        at += size
    assert np.isclose(found["valid_0"]["ndcg@5"][-1], np.mean(scores), atol=0.01)


def check_a_metric_that_fails() -> None:
    train = lgb.Dataset(X[OWN], Y[OWN])

    def fit(metric: Callable[..., None]) -> object:
        own = lambda *of: metric(*of) or ("own", 1.0, False)  # noqa: E731
        return lgb.train(EXACT, train, 3, [lgb.Dataset(X[OWN], Y[OWN])], feval=own)

    fails_on_the_last(fit, lgb.DataError)


def check_a_training_that_ranks_leave() -> None:
    """A mistake that all of them make: they go on together. Of one rank: the others learn of it."""
    train = lgb.Dataset(X[OWN], Y[OWN])

    def fit(who: list[int]) -> object:
        def fails(env: Any) -> None:
            if RANK in who and env.iteration == 2:
                raise KeyError("mistake")

        return lgb.train(EXACT, train, 5, callbacks=[fails])

    raised(KeyError, lambda: fit([*range(WORLD.size)]), "mistake")
    assert fit([]).num_trees() == 5
    last = WORLD.size - 1
    words = () if last == RANK else (f"rank {last} on ", "left the training with KeyError")
    raised(KeyError if last == RANK else lgb.WorldError, lambda: fit([last]), *words)
    raised(lgb.WorldError, lambda: fit([]), "call finalize() and then init()")
    lgb.finalize()
    lgb.init()
    assert fit([]).num_trees() == 5


def check_classes_that_are_balanced_over_all_rows() -> None:
    kinds = np.where([0.3, 0.6, 0.9][RANK] < Y, "yes", "no")
    every = np.concatenate(WORLD.allgather(kinds[OWN]))
    given = compute_class_weight("balanced", classes=np.array(["no", "yes"]), y=every)
    options = {"n_estimators": 5, "n_jobs": 1, "verbose": -1}
    models = []
    for weight in ("balanced", dict(zip(["no", "yes"], given, strict=True))):
        model = lgb.LGBMClassifier(class_weight=weight, **options)
        for _ in range(2):  # it is fitted again
            model.fit(X[OWN], kinds[OWN])
        assert model.class_weight == weight
        models.append(model.booster_.model_to_string().partition("\nparameters:")[0])
    assert models[0] == models[1]


begin = lgb.init
