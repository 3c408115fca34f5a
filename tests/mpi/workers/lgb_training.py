"""Training by LightGBM over all ranks: one model, stopping, files, classes, saving.

The argument is a folder. See run_checks.py.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import alike
import lightgbm
import numpy as np
from alike import RANK, SIZE, WORLD, same
from lgb_network import LABELS, MINE, PARAMETERS, X, Y, digest

import shanty.lightgbm as lgb

differs = partial(alike.differs, lgb.DataError)
FOLDER = Path(sys.argv[1])


def train(rounds: int = 30, **parameters: object) -> lgb.Booster:
    booster = lgb.train({**PARAMETERS, **parameters}, lgb.Dataset(MINE, LABELS), rounds)
    same(digest(booster))
    return booster


def loss(booster: lightgbm.Booster) -> float:
    """The log loss over all rows."""
    probability = booster.predict(X)
    return float(-np.mean(np.log(np.where(Y == 1, probability, 1 - probability))))


def check_one_model_as_good_as_that_of_one_process() -> None:
    together = train()
    lgb.finalize()
    alone = lightgbm.train(PARAMETERS, lightgbm.Dataset(X, Y), 30)
    lgb.init()
    assert abs(loss(together) - loss(alone)) < 0.2 * loss(alone)
    assert loss(train(tree_learner="voting")) < 0.1


def check_all_ranks_stop_at_the_same_round() -> None:
    """Rank 0 reports each round to the run, once, with the metrics of all ranks."""
    run = Path(os.environ["SHANTY_RUN_DIR"])
    log = run / "metrics.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    WORLD.Barrier()
    booster = lgb.train(
        {**PARAMETERS, "learning_rate": 0.5}, lgb.Dataset(MINE, LABELS), 300,
        valid_sets=[lgb.Dataset(MINE[:20], LABELS[:20])],
        callbacks=[lgb.early_stopping(5, verbose=False)],
    )  # fmt: skip
    same((digest(booster), booster.best_iteration, booster.best_score["valid_0"]))
    assert booster.best_iteration < 300
    WORLD.Barrier()
    lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert [line["round"] for line in lines] == list(range(len(lines)))
    best = min(lines, key=lambda line: line["valid_0-binary_logloss"])
    assert best["round"] + 1 == booster.best_iteration
    assert json.loads((run / "progress.json").read_text())["done"] > 0


def check_rows_of_a_file_are_shared_out() -> None:
    path = FOLDER / "train.csv"
    if RANK == 0:
        np.savetxt(path, np.column_stack([Y, X]), delimiter=",")
    WORLD.Barrier()
    booster = lgb.train({**PARAMETERS, "header": False}, lgb.Dataset(str(path)), 30)
    same(digest(booster))
    assert loss(booster) < 0.1


def check_a_classifier_whose_ranks_have_other_classes() -> None:
    part = np.array_split(np.argsort(Y, kind="stable"), SIZE)[RANK]  # of one class, or nearly so
    names = np.array(["benign", "malignant"])
    model = lgb.LGBMClassifier(n_estimators=30, num_leaves=15, verbose=-1, n_jobs=1)
    model.fit(X[part], names[Y[part]])
    same(digest(model.booster_))
    assert list(model.classes_) == ["benign", "malignant"]
    assert model.score(X, names[Y]) > 0.98


def check_models_are_saved_once_or_refused() -> None:
    booster, folder = train(5), FOLDER / "models"
    if RANK == 0:
        folder.mkdir()
    WORLD.Barrier()
    missing = folder / "none" / "model.txt"
    words = f"the model cannot be written to {missing}: "
    differs(lambda: lgb.save_model(booster, missing), words)
    lgb.save_model(booster, folder / "model.txt")
    assert digest(lgb.Booster(model_file=folder / "model.txt")) == digest(booster)
    assert [path.name for path in folder.iterdir()] == ["model.txt"]


def objective(guess: np.ndarray, data: lgb.Dataset) -> tuple[np.ndarray, np.ndarray]:
    probability = 1 / (1 + np.exp(-guess))
    return probability - data.get_label(), probability * (1 - probability)


def check_what_a_rank_may_have_of_its_own() -> None:
    """What cannot be compared, and what ranks may differ in."""
    own = {"objective": objective, "verbose": -1 - RANK, "num_threads": 1 + RANK}
    assert train(5, **own, nodes="a:1,b:2").num_trees() == 5
    state = np.random.RandomState(0)
    lgb.LGBMClassifier(n_estimators=3, random_state=state, verbose=-1).fit(MINE, LABELS)


def check_mistakes() -> None:
    rows = slice(None) if RANK else slice(0)
    words = "num_leaves is 15 on rank 0 and 16 on rank 1"
    differs(lambda: train(num_leaves=15 + (RANK == 1)), words)
    differs(lambda: train(tree_learner="feature"), "tree_learner is 'feature'")
    for features, labels, words in (
        (MINE[rows], LABELS[rows], "rank 0 has no rows"),
        (MINE[:, min(RANK, 1) :], LABELS, "30 on rank 0 and 29 on rank 1"),
    ):
        data = lgb.Dataset(features, labels)
        differs(lambda data=data: lgb.train(PARAMETERS, data, 5), words)
