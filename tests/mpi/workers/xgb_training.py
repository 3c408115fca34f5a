"""Training by all ranks: early stopping, cv, scikit-learn's classes, saving, coming together and
parting.

    xgb_training.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import xgboost
from mpi4py import MPI
from sklearn.base import clone
from sklearn.datasets import load_digits
from xgb_data import WORLD, X, Y, made, run, same, svm, total

import shanty.xgboost as xgb

FOLDER = Path(sys.argv[1])
PARAMS = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
_, DIGITS = load_digits(return_X_y=True)
OWN = slice(WORLD.rank, None, WORLD.size)


def check_mpi_and_xgboost_count_alike() -> None:
    assert (xgb.rank(), xgb.size()) == (WORLD.rank, WORLD.size)
    assert xgb.is_initialized()
    assert xgb.collective.get_rank() == WORLD.rank
    assert xgb.collective.get_world_size() == WORLD.size
    xgb.init()  # a second time changes nothing
    found = xgb.collective.allreduce(np.array([WORLD.rank + 1.0]), xgb.collective.Op.SUM)
    assert found[0] == WORLD.size * (WORLD.size + 1) / 2


def check_early_stopping_is_the_same_everywhere() -> None:
    text = made("stop.libsvm", lambda path: path.write_text(svm(X, Y)))
    train = xgb.DMatrix(text)
    rng = np.random.default_rng(WORLD.rank)
    noise = xgb.DMatrix(X[OWN], rng.integers(0, 2, len(X[OWN])))
    found: dict[str, dict[str, list[float]]] = {}
    booster = xgb.train(
        {**PARAMS, "eval_metric": ["error", "logloss"]},
        train,
        200,
        evals=[(train, "train"), (noise, "noise")],
        early_stopping_rounds=3,
        evals_result=found,
        verbose_eval=False,
        custom_metric=lambda _, matrix: ("rows", float(matrix.num_row())),
    )
    same(found)
    same((booster.best_iteration, booster.num_boosted_rounds()))
    assert booster.num_boosted_rounds() < 200
    assert np.isclose(found["train"]["rows"][0], len(X) / WORLD.size)  # a mean over the ranks


def check_metrics_are_of_all_rows() -> None:
    matrix = xgb.DMatrix(X[OWN], Y[OWN])
    found: dict[str, dict[str, list[float]]] = {}
    params = {**PARAMS, "eval_metric": "error"}
    booster = xgb.train(
        params, matrix, 4, evals=[(matrix, "train")], evals_result=found, verbose_eval=False
    )
    wrong = ((booster.inplace_predict(X) > 0.5) != Y).mean()
    assert np.isclose(found["train"]["error"][-1], wrong)


def check_cv() -> None:
    matrix = xgb.DMatrix(X[OWN], Y[OWN])
    for stratified in (False, True):
        found = xgb.cv(
            PARAMS, matrix, 8, nfold=3, stratified=stratified, metrics=["error"], as_pandas=False
        )
        found = {name: [float(each) for each in values] for name, values in found.items()}
        same(found)
        assert len(found["test-error-mean"]) == 8
        assert found["train-error-mean"][-1] < found["test-error-mean"][-1] < 0.2
        assert 0 < found["test-error-std"][-1] < 0.05
    stopped = xgb.cv(
        {**PARAMS, "learning_rate": 1.0},
        matrix,
        100,
        metrics=["logloss"],
        early_stopping_rounds=2,
        as_pandas=False,
    )
    same(len(stopped["test-logloss-mean"]))
    assert len(stopped["test-logloss-mean"]) < 100
    ranking = xgb.DMatrix(X[OWN], Y[OWN], qid=np.arange(len(X[OWN])) // 30)
    found = xgb.cv({"objective": "rank:ndcg", "nthread": 1}, ranking, 2, nfold=3, as_pandas=False)
    same({name: [float(each) for each in values] for name, values in found.items()})
    few = xgb.DMatrix(X[:4], Y[:4], qid=[0, 0, 1, 1])
    try:
        xgb.cv({"objective": "rank:ndcg"}, few, 2, nfold=3)
    except xgb.DataError as error:
        assert "groups" in str(error)
    else:
        assert WORLD.size == 1


def check_estimators() -> None:
    model = xgb.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1)
    assert clone(model).get_params() == model.get_params()
    mine = DIGITS[OWN] if WORLD.size == 1 else DIGITS[(DIGITS % WORLD.size) == WORLD.rank]
    rows = X[OWN] if WORLD.size == 1 else X[(DIGITS % WORLD.size) == WORLD.rank]
    assert WORLD.size == 1 or len(np.unique(mine)) < 10  # a rank has not seen every class
    model.fit(rows, mine, eval_set=[(rows, mine)], verbose=False)
    assert model.n_classes_ == 10 and model.classes_.tolist() == list(range(10))
    same(bytes(model.get_booster().save_raw("json")))
    same(model.evals_result())
    assert (model.predict(X) == DIGITS).mean() > 0.85
    assert model.callbacks is None
    path = FOLDER / "classifier.json"
    model.save_model(path)
    again = xgb.XGBClassifier()
    again.load_model(path)
    assert again.n_classes_ == 10
    assert (again.predict(X) == model.predict(X)).all()
    try:
        xgb.XGBClassifier(n_estimators=2).fit(X[OWN], DIGITS[OWN] + 2 * (DIGITS[OWN] > 4))
    except xgb.DataError as error:
        assert "0 … 9" in str(error)
        same(str(error))
    else:
        raise AssertionError("no error")
    forest = xgb.XGBRFClassifier(n_estimators=10, n_jobs=1).fit(rows, mine)
    assert (forest.predict(X) == DIGITS).mean() > 0.6
    regressor = xgb.XGBRegressor(n_estimators=20, n_jobs=1).fit(X[OWN], DIGITS[OWN])
    assert regressor.score(X, DIGITS) > 0.8
    xgb.XGBRFRegressor(n_estimators=10, n_jobs=1).fit(X[OWN], DIGITS[OWN])
    qids = np.arange(len(X[OWN])) // 20
    ranker = xgb.XGBRanker(n_estimators=3, n_jobs=1).fit(X[OWN], Y[OWN], qid=qids)
    same(bytes(ranker.get_booster().save_raw("json")))


def check_saving() -> None:
    booster = xgb.train(PARAMS, xgb.DMatrix(X[OWN], Y[OWN]), 2)
    path = FOLDER / "model.ubj"
    xgb.save_model(booster, path)
    assert path.exists()  # on every rank, at once
    again = xgb.Booster(model_file=path)
    assert again.num_boosted_rounds() == 2
    assert [each.name for each in FOLDER.iterdir() if each.name.startswith(".")] == []
    try:
        xgb.save_model(booster, FOLDER / "no" / "model.ubj")
    except xgb.DataError as error:
        assert "model.ubj" in str(error)
    else:
        raise AssertionError("no error")


def check_the_run_hears_of_it() -> None:
    WORLD.Barrier()
    metrics = Path(os.environ["SHANTY_RUN_DIR"], "metrics.jsonl").read_text()
    assert '"train-error"' in metrics and '"round": 3' in metrics and '"rank": 1' not in metrics


def check_parting_and_coming_together_again() -> None:
    text = made("part.libsvm", lambda path: path.write_text(svm(X, Y)))
    xgb.finalize()
    xgb.finalize()
    assert not xgb.is_initialized()
    assert not xgboost.collective.is_distributed()
    assert (xgb.rank(), xgb.size()) == (0, 1)  # by itself, and so with all rows
    if WORLD.rank == 0:  # nobody else is needed
        assert xgb.DMatrix(text).num_row() == len(X)
        assert xgb.DMatrix(X).num_row() == len(X)
    with xgb.communicator():
        assert xgb.size() == WORLD.size
        with xgb.communicator():
            pass
        assert xgb.is_initialized()
        assert total(xgb.DMatrix(text).num_row()) == len(X)
    assert not xgb.is_initialized()
    xgb.init()


if __name__ == "__main__":
    assert MPI.Is_initialized()  # before XGBoost's ranks come together
    run([value for name, value in list(globals().items()) if name.startswith("check_")])
