"""Training by all ranks: early stopping, cv, scikit-learn's classes, saving, coming together and
parting. The argument is a folder. See run_checks.py.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import xgboost
from alike import BOUND, WORLD, differs, same
from checks import raised
from sklearn.base import clone
from sklearn.datasets import load_digits
from xgb_data import X, Y, made, refused, svm, text, total

import shanty.xgboost as xgb
from shanty.xgboost import communication, share
from shanty.xgboost.communication import Communicator, current
from shanty.xgboost.consensus import Consensus, together

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


def check_a_rank_without_rows_knows_the_names() -> None:
    rows = slice(0, 0) if WORLD.rank == 0 else slice(0, 40)
    names = [f"pixel{number}" for number in range(X.shape[1])]
    train = xgb.DMatrix(X[rows], Y[rows], feature_names=names)
    assert xgb.train(PARAMS, train, 2).feature_names == names


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
    raised(xgb.DataError, lambda: xgb.cv({"objective": "rank:ndcg"}, few, 2, nfold=3), "groups")


def check_estimators() -> None:
    model = xgb.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1)
    assert clone(model).get_params() == model.get_params()
    own = (DIGITS % WORLD.size) == WORLD.rank
    rows, mine = X[own], DIGITS[own]
    assert len(np.unique(mine)) < 10  # a rank has not seen every class
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
    gap = DIGITS[OWN] + 2 * (DIGITS[OWN] > 4)
    differs(xgb.DataError, lambda: xgb.XGBClassifier(n_estimators=2).fit(X[OWN], gap), "0 … 9")
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
    missing = FOLDER / "no" / "model.ubj"
    raised(xgb.DataError, lambda: xgb.save_model(booster, missing), "model.ubj")


def check_the_run_gets_the_metrics() -> None:
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


def fails_on(who: int, make: Callable[[], object], kind: type[Exception] = xgb.DataError) -> None:
    """Rank `who` fails with `kind`, and all others raise a DataError at once."""
    begun = time.monotonic()
    try:
        make()
    except (xgb.DataError, kind) as error:
        assert type(error) is (kind if WORLD.rank == who else xgb.DataError), repr(error)
        assert WORLD.rank == who or f"rank {who} on " in str(error), repr(error)
        assert "Stack trace" not in str(error)
    else:
        raise AssertionError("no error")
    assert time.monotonic() - begun < BOUND


def check_a_matrix_that_one_rank_cannot_make() -> None:
    """Before XGBoost's ranks agree on columns, and after; the next matrix is made again."""
    weights = svm(X, Y).splitlines(keepends=True)
    weights[-2] = "1:-1 0:1\n"
    weighed = text(
        "weights.libsvm", "".join(w.replace(" ", ":1 ", 1) for w in weights[:-2]) + weights[-2]
    )
    for make in (xgb.DMatrix, xgb.QuantileDMatrix):
        fails_on(WORLD.size - 1, partial(make, weighed))
        for who in {0, WORLD.size - 1}:
            mine = who == WORLD.rank
            fails_on(who, partial(make, X[:9], Y[: 9 - mine]))
            fails_on(who, partial(make, X[:9] + np.float32(np.inf if mine else 0), Y[:9]))
            fails_on(who, partial(make, object() if mine else X[:9], Y[:9]), TypeError)
        assert make(X[:9], Y[:9]).num_row() == 9
    for model in (xgb.XGBClassifier(n_estimators=1), xgb.XGBRFRegressor(n_estimators=1)):
        fails_on(0, partial(model.fit, X[:9], Y[: 9 - (WORLD.rank == 0)]))
        assert model.fit(X[:9], Y[:9]).n_features_in_ == X.shape[1]


def check_a_disk_that_is_full() -> None:
    """Of one rank: where its share goes, and where XGBoost's own form is made."""
    data = text("full.libsvm", svm(X, Y))
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    for name in ("TemporaryFile", "TemporaryDirectory"):
        for who in {0, WORLD.size - 1}:
            with mock.patch.object(share, name, full) if who == WORLD.rank else nullcontext():
                refused(data, "No space left", "TMPDIR")
    with mock.patch.object(share, "folder", lambda: str(FOLDER)):
        assert total(xgb.DMatrix(data).num_row()) == len(X)


def check_a_consensus() -> None:
    """What one rank's work or the judge raises reaches all; the next consensus is as ever."""

    def fail(who: int, error: Exception, _: object) -> int:
        if who == WORLD.rank:
            raise error
        return WORLD.rank

    now = current()
    for who in {0, WORLD.size - 1}:
        for error in (KeyError("mine"), xgb.DataError("mine")):
            work = partial(fail, who, error)
            fails_on(who, partial(together, now, "a test", work, sum), type(error))
    for error in (KeyError("judge"), xgb.DataError("judge")):
        judge = partial(fail, 0, error)
        try:
            together(now, "a test", lambda _: 1, judge)
        except Exception as found:  # noqa: BLE001 (looked at)
            assert type(found) is (xgb.DataError if WORLD.rank else type(error)), repr(found)
            assert "judge" in str(found)
        else:
            raise AssertionError("no error")
        assert together(now, "a test", lambda _: WORLD.rank, list) == list(range(WORLD.size))


def check_a_consensus_to_which_one_rank_does_not_come() -> None:
    """Those who wait give up; not while another one is at work, and shows it."""
    last, words = WORLD.size - 1, f"rank {WORLD.size - 1}"
    now = Communicator(WORLD.Dup(), 1)

    def work(consensus: Consensus) -> None:
        until = time.monotonic() + 2 * (WORLD.rank == last)
        while time.monotonic() < until:
            consensus.go_on()

    together(now, "a test", work, list)
    for who in (last, 0):
        now, begun = Communicator(WORLD.Dup(), 1), time.monotonic()
        if WORLD.rank != who:
            alone = partial(together, now, "a test", lambda _: 1, list)
            raised(xgb.WorldError, alone, f"rank {who}")
            assert time.monotonic() - begun < BOUND
            assert now.failed
        WORLD.Barrier()
    now = Communicator(WORLD.Dup())
    what = f"{'else' if WORLD.rank == last else 'a'} test"
    elsewhere = partial(together, now, what, lambda _: 1, list)
    raised(xgb.WorldError, elsewhere, "different calls", words)
    now = Communicator(WORLD.Dup())
    raised(xgb.WorldError, partial(together, now, "a test", partial(leave, last), list), "gone")


def leave(who: int, _: Consensus) -> None:
    if WORLD.rank == who:
        raise xgb.WorldError("gone")


def check_parting_at_different_times() -> None:
    """Whoever comes first waits for the others, in good order."""
    for who in {0, WORLD.size - 1}:
        xgb.init()
        with mock.patch.object(communication, "_PARTING", 1):
            if who == WORLD.rank:
                time.sleep(2)
            xgb.finalize()
    xgb.init(timeout=1)
    WORLD.Barrier()
    if WORLD.rank:
        time.sleep(3)
    found = raised((xgb.WorldError, xgboost.core.XGBoostError), xgb.finalize)
    assert WORLD.rank or ", ".join(map(str, range(1, WORLD.size))) in found, found
    WORLD.Barrier()
    xgb.init()


class Leaves(xgboost.callback.TrainingCallback):
    def __init__(self, here: bool, when: str) -> None:
        self.here, self.when = here, when

    def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
        if self.here and self.when == "within" and epoch == 2:
            raise KeyError("mistake")
        return False

    def after_training(self, model: object) -> object:
        if self.here and self.when == "after":
            raise KeyError("mistake")
        return model


def check_a_training_that_one_rank_leaves() -> None:
    """Though its script catches the error, the others learn of it, and all can begin again."""
    matrix = xgb.DMatrix(X, Y)
    for who, when in ((0, "within"), (WORLD.size - 1, "after"), (0, "first")):
        leaves = WORLD.rank == who
        options: dict[str, object] = {"callbacks": [Leaves(leaves, when)]}
        if when == "first" and leaves:  # an error of XGBoost's own
            options["obj"] = lambda guess, _: (guess[:3], guess[:3])
        elif when == "first":
            options["obj"] = lambda guess, _: (guess, np.ones_like(guess))
        begun = time.monotonic()
        kinds = (KeyError, ValueError) if leaves else xgb.WorldError
        words = () if leaves else (f"rank {who} on ", "left the training with ")
        raised(kinds, lambda: xgb.train({"nthread": 1}, matrix, 5, **options), *words)  # noqa: B023
        assert time.monotonic() - begun < 30  # not XGBoost's 300
        raised(xgb.WorldError, lambda: xgb.DMatrix(X, Y), "call finalize() and then init()")
        xgb.finalize()
        xgb.init()
        matrix = xgb.DMatrix(X, Y)


def check_a_training_that_all_ranks_leave() -> None:
    """A mistake that all of them make: they go on together."""
    matrix = xgb.DMatrix(X, Y)
    for when in ("within", "after"):
        leaves = [Leaves(True, when)]
        raised(KeyError, lambda: xgb.train({}, matrix, 5, callbacks=leaves), "mistake")  # noqa: B023
    assert xgb.train({"nthread": 1}, matrix, 2).num_boosted_rounds() == 2


def check_a_bring_up_that_fails() -> None:
    """On one rank only: all raise it, and can try again."""
    xgb.finalize()
    enter = xgboost.collective.CommunicatorContext.__enter__
    for times, who in ((1, 0), (1, WORLD.size - 1), (3, WORLD.size - 1)):
        left = [times if who == WORLD.rank else 0]

        def fail(self: object, left: list[int] = left) -> object:
            left[0] -= 1
            if left[0] >= 0:
                raise xgboost.core.XGBoostError("top\n\n- [first]: Interrupted system call")
            return enter(self)

        with (
            mock.patch.object(xgboost.collective.CommunicatorContext, "__enter__", fail),
            mock.patch.object(communication, "_JOINING", 1),
        ):
            try:
                xgb.init()
            except xgb.WorldError as error:
                assert times == 3
                assert f"rank {who}: [first]: Interrupted system call" in str(error), error
                same(str(error))
            else:
                assert times == 1
                xgb.finalize()
        assert not xgb.is_initialized()
    xgb.init()
