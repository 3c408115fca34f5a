"""What all ranks must have alike: categories, columns, parameters; and metrics of one's own.

See alike.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import alike
import numpy as np
import pandas as pd
import pyarrow as pa
import xgboost
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
    same,
    values,
)
from xgb_data import X, Y

import shanty.xgboost as xgb

EXACT = {"lambda": 0, "nthread": 1, "max_bin": 64, "eta": 0.8, "max_depth": 3}
KEEPS = hasattr(xgboost.Booster, "get_categories")  # 3.1
differs = partial(alike.differs, xgb.DataError)


def exact(booster: xgb.Booster, rows: pd.DataFrame) -> None:
    """The model predicts any rank's rows, whatever their categories; it is the same on all."""
    same(bytes(booster.save_raw("json")))
    predicts(booster.inplace_predict, rows)


# ---- categories ----------------------------------------------------------------------------------


def check_categories_are_those_of_all_ranks() -> None:
    rows = mine()
    before = rows.copy()
    if not KEEPS:
        make = partial(xgb.DMatrix, rows, values(rows), enable_categorical=True)
        differs(make, "'kind'", "on rank 0", "on rank 1", "does not keep them")
        return
    text = pa.table({"noise": rows["noise"], "kind": pa.array(rows["kind"])})
    assert pa.types.is_dictionary(text.schema.field("kind").type)
    for data in (rows, text):
        for make in (xgb.DMatrix, xgb.QuantileDMatrix):
            more = {"max_bin": 64} if make is xgb.QuantileDMatrix else {}
            matrix = make(data, values(rows), enable_categorical=True, **more)
            joined = dict(matrix.get_categories(export_to_arrow=True).to_arrow())
            assert joined["kind"].to_pylist() == sorted(VALUE)
            booster = xgb.train(EXACT, matrix, 8)
            exact(booster, rows)
            assert abs(booster.predict(matrix) - values(rows)).max() < 0.1
    pd.testing.assert_frame_equal(rows, before)
    assert rows["kind"].cat.categories.tolist() == before["kind"].cat.categories.tolist()


def check_categories_of_other_rows_to_test_on() -> None:
    """They are coded as those that were trained on, on every rank."""
    if not KEEPS:
        return
    rows = mine()
    test = animals([["dog", "cat"], ["bee"]][RANK % 2], [["dog", "cat"], ["bee"]][RANK % 2])
    train = xgb.QuantileDMatrix(rows, values(rows), enable_categorical=True, max_bin=64)
    for other in (
        xgb.DMatrix(test, values(test), enable_categorical=True),
        xgb.QuantileDMatrix(test, values(test), enable_categorical=True, ref=train, max_bin=64),
    ):
        found: History = {}
        evals = [(other, "test")]
        xgb.train(EXACT, train, 8, evals=evals, evals_result=found, verbose_eval=False)
        assert found["test"]["rmse"][-1] < 0.1


def check_categories_of_the_scikit_learn_classes() -> None:
    if not KEEPS:
        return
    rows = mine()
    test = animals(["dog", "bee"], ["dog", "bee"])
    options = {"enable_categorical": True, "tree_method": "hist", "n_jobs": 1, "reg_lambda": 0}
    model = xgb.XGBRegressor(n_estimators=8, learning_rate=0.8, **options)
    evals = [(rows, values(rows)), (test, values(test))]
    model.fit(rows, values(rows), eval_set=evals, verbose=False)
    exact(model.get_booster(), rows)
    assert all(each["rmse"][-1] < 0.1 for each in model.evals_result().values())
    classes = (values(rows) > 4).astype(int)
    wise = xgb.XGBClassifier(n_estimators=10, **options).fit(rows, classes)
    assert (wise.predict(rows) == classes).all()


def check_a_rank_without_rows() -> None:
    """It takes names and types of the others; its own table may have none of them."""
    empty = pd.DataFrame({"noise": [], "kind": []}, dtype=object)
    rows = pd.DataFrame(X[:60, :2], columns=["a", "b"]) if RANK < LAST else empty
    for make in (xgb.DMatrix, xgb.QuantileDMatrix):
        booster = xgb.train({"nthread": 1}, make(rows, Y[: len(rows)]), 4)
        same((booster.feature_names, booster.feature_types))
        same(bytes(booster.save_raw("json")))
    rows = mine() if RANK < LAST else empty
    make = partial(xgb.DMatrix, rows, values(rows), enable_categorical=True)
    if KEEPS:
        differs(make, f"rank {LAST} has no rows", "'kind'")


def check_categories_that_cannot_be_joined() -> None:
    make = partial(xgb.DMatrix, label=np.zeros(3), enable_categorical=True)
    numbers = [3, 2, 1] if RANK == LAST else ["x", "y", "z"]
    for column, *words in (
        (pd.Categorical(numbers), "of type str on rank 0", f"of type number on rank {LAST}"),
        (
            pd.Categorical(list("abc"), list("abc")[:: -1 if RANK == LAST else 1], ordered=True),
            f"a, b, c on rank 0 and c, b, a on rank {LAST}",
            "contradict",
        ),
        (
            pd.Categorical(list("abc")) if RANK else [1.0, 2.0, 3.0],
            "not a category on rank 0 and a category on rank 1",
        ),
    ):
        words = words if KEEPS else words[:0]
        differs(lambda column=column: make(pd.DataFrame({"kind": column})), "'kind'", *words)
    alone = pd.Series(pd.Categorical(["a", f"{RANK}", "c"]), name="kind")
    differs(lambda: make(alone), "'kind'", "without a table", "on rank 1")
    names = ["a", "b"] if RANK < LAST else ["b", "a"]
    table = pd.DataFrame(X[:3, :2], columns=names)
    differs(lambda: make(table), "feature names in another order", f"rank {LAST}")


def check_matrices_that_ranks_have_made_by_themselves() -> None:
    """By XGBoost's own classes: they are compared before the training."""
    rows = mine()
    if KEEPS:
        matrix = xgboost.DMatrix(rows, values(rows), enable_categorical=True)
        differs(lambda: xgb.train(EXACT, matrix, 3), "column 'kind'", "ant, bee", "rank 1")
    names = ["a", "b"] if RANK < LAST else ["b", "a"]
    other = xgboost.DMatrix(X[:9, :2], Y[:9], feature_names=names)
    differs(lambda: xgb.train(EXACT, other, 3), "feature names of dtrain", f"rank {LAST}")


# ---- iterators -----------------------------------------------------------------------------------


class Batches(xgb.DataIter):
    """Batches of rows, from memory."""

    def __init__(self, batches: list[tuple[object, np.ndarray]]) -> None:
        self.batches, self.at = batches, 0
        super().__init__()

    def reset(self) -> None:
        self.at = 0

    def next(self, input_data: Callable[..., object]) -> bool:
        if self.at == len(self.batches):
            return False
        data, label = self.batches[self.at]
        input_data(data=data, label=label)
        self.at += 1
        return True


def check_a_rank_whose_iterator_has_no_batch() -> None:
    rows = animals(list(VALUE))
    for data in (X[:40], pd.DataFrame(X[:40, :2], columns=["a", "b"])):
        batches = [(data, Y[:40])] * 2 if RANK < LAST else []
        matrix = xgb.QuantileDMatrix(Batches(batches), max_bin=64)
        assert matrix.num_row() == 80 * (RANK < LAST)
        same(bytes(xgb.train(EXACT, matrix, 10).save_raw("json")))
    make = partial(xgb.QuantileDMatrix, enable_categorical=True, max_bin=64)
    booster = xgb.train(EXACT, make(Batches([(rows, values(rows))] * 2)), 8)
    assert abs(booster.inplace_predict(rows) - values(rows)).max() < 0.5
    own = mine()
    differs(lambda: make(Batches([(own, values(own))])), "'kind'", "iterator's batches", "rank 1")
    first, second = (animals(["ant", "bee"], order) for order in (["ant", "bee"], ["bee", "ant"]))
    batches = Batches([(each, values(each)) for each in (first, second)])
    differs(lambda: make(batches), "'kind' differ between an iterator's batches")


# ---- parameters, and what belongs to rows --------------------------------------------------------


def check_parameters_that_differ() -> None:
    odd = RANK == LAST
    names = {"feature_names": [f"f{each}" for each in range(X.shape[1])]}
    train = xgb.DMatrix(X[:60], Y[:60], **names)
    for params, options, *words in (
        ({"max_depth": 3 + odd}, {}, "max_depth: 3 on rank 0", f"4 on rank {LAST}"),
        (
            {"monotone_constraints": {"f1": 1, "f2": 1} if odd else {"f1": 1}},
            {},
            "monotone_constraints",
            '"f2": 1',
        ),
        ({}, {"num_boost_round": 3 + odd}, "num_boost_round"),
        ({}, {"evals": [(train, "a")] if odd else []}, "evals: none on rank 0", "'a'"),
        ({}, {"custom_metric": print if odd else None}, "custom_metric"),
        ({} if odd else {"eta": 0.1}, {}, "eta: 0.1 on rank 0, missing"),
    ):
        differs(lambda p=params, o=options: xgb.train(p, train, **o), *words, f"rank {LAST}")
        if "evals" not in options:
            differs(lambda p=params, o=options: xgb.cv(p, train, **o), *words)
    free = {"nthread": 1 + odd, "verbosity": 1 + odd, "seed": 3}
    same(bytes(xgb.train({**free, "monotone_constraints": {"f1": 1}}, train, 3).save_raw()))
    differs(lambda: xgb.XGBRegressor(max_depth=3 + odd).fit(X[:9], Y[:9]), "max_depth", "rank 0")
    make = partial(xgb.QuantileDMatrix, X[:60], Y[:60])
    differs(lambda: make(max_bin=32 + odd), "max_bin: 32 on rank 0")
    differs(lambda: make(missing=0.0 if odd else None), "missing: nan on rank 0", "0.0 on rank")
    make(missing=np.nan if odd else None)


class Stops(xgboost.callback.TrainingCallback):
    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
        return epoch == self.last


def check_callbacks_that_stop_some_ranks_only() -> None:
    """They would leave the others waiting for this rank's rows."""
    rows = mine()[["noise"]]
    train = xgb.DMatrix(rows, values(mine()))
    stops = "stops the training after round 2 on rank 0, but not on rank 1"
    for own in ([Stops(2)] if RANK == 0 else None, [Stops(2 + RANK)]):
        differs(lambda own=own: xgb.train(EXACT, train, 9, callbacks=own), stops)
        differs(lambda own=own: xgb.cv(EXACT, train, 9, callbacks=own), stops)
        model = xgb.XGBRegressor(n_estimators=9, callbacks=own)
        differs(lambda model=model: model.fit(rows, values(mine())), stops)
    booster = xgb.train(EXACT, train, 9, callbacks=[Stops(2)])
    assert booster.num_boosted_rounds() == 3


def check_what_belongs_to_rows_is_given_on_all_ranks() -> None:
    odd = RANK == LAST
    ones = np.ones(60)
    for name, value in (
        ("weight", ones),
        ("base_margin", ones),
        ("qid", np.zeros(60, int)),
        ("feature_weights", np.ones(X.shape[1])),
    ):
        given = {name: value} if odd else {}
        train = xgb.DMatrix(X[:60], Y[:60], **given)
        what = "qid or group" if name == "qid" else name
        differs(lambda train=train: xgb.train(EXACT, train, 3), what, f"on rank {LAST}")
        whole = xgb.DMatrix(X[:60], Y[:60], **{name: value})
        same(bytes(xgb.train(EXACT, whole, 3).save_raw()))
    some = {"sample_weight": ones} if odd else {}
    differs(lambda: xgb.XGBRegressor().fit(X[:60], Y[:60], **some), "sample_weight", "rank 0")
    qid = np.repeat([1, 0], 30) if odd else np.repeat([0, 1], 30)
    rank = xgb.XGBRanker(n_estimators=1)
    differs(lambda: rank.fit(X[:60], Y[:60], qid=qid), f"rank {LAST} on ", "qid is not sorted")


def check_models_that_differ() -> None:
    """Whatever the reason: here each rank trains a linear model by itself."""
    train = xgb.DMatrix(X[RANK::SIZE], Y[RANK::SIZE])
    make = partial(xgb.train, {"booster": "gblinear", "nthread": 1}, train, 3)
    alike.differs(xgb.WorldError, make, "different models", "on rank 1")


# ---- metrics of one's own ------------------------------------------------------------------------


def share() -> slice:
    """Uneven shares of all rows; the last rank has none."""
    cuts = [0, *(len(X) * (each + 1) ** 2 // LAST**2 for each in range(LAST)), len(X)]
    return slice(cuts[RANK], cuts[RANK + 1])


def misses(guess: np.ndarray, matrix: xgb.DMatrix) -> list[tuple[str, float]]:
    labels = matrix.get_label()
    assert len(labels)  # it is not called for no rows
    return [("misses", float(((guess > 0.5) != labels).mean())), ("rows", float(len(labels)))]


def weighed(guess: np.ndarray, matrix: xgb.DMatrix) -> tuple[str, float]:
    return "own", float(
        np.average((guess > 0.5) != matrix.get_label(), weights=matrix.get_weight())
    )


def check_a_metric_of_one_s_own_is_a_mean_over_rows() -> None:
    rows = share()
    test = xgb.DMatrix(X[rows], Y[rows], weight=1 + np.arange(len(X))[rows] % 7)
    train = xgb.DMatrix(X[RANK::SIZE], Y[RANK::SIZE])
    params = {"objective": "binary:logistic", "nthread": 1, "eval_metric": "error"}
    found: History = {}
    booster = xgb.train(
        params, train, 30, evals=[(test, "test")], custom_metric=misses,
        evals_result=found, early_stopping_rounds=2, verbose_eval=False,
    )  # fmt: skip
    same({name: list(map(float, each)) for name, each in found["test"].items()})
    same(booster.num_boosted_rounds())
    wrong = (booster.inplace_predict(X) > 0.5) != Y
    assert np.isclose(found["test"]["misses"][-1], wrong.mean(), atol=2e-6)
    sizes = np.array(WORLD.allgather(rows.stop - rows.start))
    assert np.isclose(found["test"]["rows"][0], (sizes**2).sum() / sizes.sum(), atol=2e-6)
    # By the weights, where it asks for them: then it is as XGBoost's own.
    options = {"evals": [(test, "test")], "evals_result": found, "verbose_eval": False}
    xgb.train(params, train, 5, custom_metric=weighed, **options)
    assert np.allclose(found["test"]["own"], found["test"]["error"], atol=2e-6)
    folds = xgb.cv(params, test, 4, custom_metric=weighed, as_pandas=False)
    for what in ("mean", "std"):
        own, builtin = (folds[f"test-{name}-{what}"] for name in ("own", "error"))
        assert np.allclose(own, builtin, atol=2e-6), (own, builtin)


def check_a_metric_of_a_scikit_learn_class() -> None:
    def wrong(labels: np.ndarray, guess: np.ndarray) -> float:
        assert len(labels)
        return float(((guess > 0.5) != labels).mean())

    rows = share()
    found = {}
    for metric in ("error", wrong):
        model = xgb.XGBClassifier(n_estimators=5, n_jobs=1, eval_metric=metric)
        model.fit(X[RANK::SIZE], Y[RANK::SIZE], eval_set=[(X[rows], Y[rows])], verbose=False)
        found |= model.evals_result()["validation_0"]
    assert np.allclose(found["wrong"], found["error"], atol=2e-6)


def check_a_metric_that_fails() -> None:
    """On one rank: it is that exception there, and its words with the rank's number elsewhere."""
    train = xgb.DMatrix(X[:60], Y[:60])
    options = {"evals": [(train, "train")], "verbose_eval": False}

    def fit(metric: Callable[..., None]) -> object:
        own = lambda *of: metric(*of) or ("own", 1.0)  # noqa: E731
        return xgb.train(EXACT, train, 3, custom_metric=own, **options)

    fails_on_the_last(fit, xgb.DataError)

    def named(*_: object) -> tuple[str, float]:
        return f"own{RANK == LAST}", 1.0

    differs(lambda: xgb.train(EXACT, train, 3, custom_metric=named, **options), "ownTrue", "rank 0")

    def nan(*_: object) -> tuple[str, float]:
        return "own", float("nan") if RANK == LAST else 1.0

    found: History = {}
    xgb.train(EXACT, train, 3, custom_metric=nan, evals_result=found, **options)
    assert np.isnan(found["train"]["own"]).all()
