"""Trains on this rank's rows of scikit-learn's breast cancer data, as argv[1] says."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from socket import gethostname

import numpy as np
from sklearn.datasets import load_breast_cancer

import shanty.lightgbm as lgb

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
x, y = load_breast_cancer(return_X_y=True)
mine, labels = x[RANK::SIZE], y[RANK::SIZE]
PARAMETERS = {
    "objective": "binary", "verbose": -1, "num_leaves": 15, "num_threads": 1, "seed": 3,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
how = sys.argv[1]


def tell(booster: lgb.Booster, **more: object) -> None:
    text = booster.model_to_string(num_iteration=-1).partition("\nparameters:")[0]
    probability = booster.predict(x)
    loss = -np.mean(np.log(np.where(y == 1, probability, 1 - probability)))
    digest = hashlib.sha256(text.encode()).hexdigest()
    told = {"rank": RANK, "host": gethostname(), "digest": digest, "loss": float(loss), **more}
    print(json.dumps(told))


if how in ("data", "voting", "feature"):
    data = lgb.Dataset(mine, labels)
    tell(lgb.train({**PARAMETERS, "tree_learner": how}, data, 30))
elif how == "stop":
    valid = lgb.Dataset(x[RANK::SIZE][:20], y[RANK::SIZE][:20])
    booster = lgb.train(
        {**PARAMETERS, "learning_rate": 0.5}, lgb.Dataset(mine, labels), 300,
        valid_sets=[valid], callbacks=[lgb.early_stopping(5, verbose=False)],
    )  # fmt: skip
    tell(booster, best=booster.best_iteration, score=booster.best_score["valid_0"])
elif how == "file":
    tell(lgb.train({**PARAMETERS, "header": False}, lgb.Dataset("train.csv"), 30))
elif how == "classifier":
    order = np.argsort(y, kind="stable")  # each rank has one class only, or nearly so
    part = np.array_split(order, SIZE)[RANK]
    model = lgb.LGBMClassifier(n_estimators=30, num_leaves=15, verbose=-1, n_jobs=1)
    model.fit(x[part], np.array(["benign", "malignant"])[y[part]])
    tell(model.booster_, classes=list(model.classes_), score=model.score(
        x, np.array(["benign", "malignant"])[y]
    ))  # fmt: skip
elif how == "of a rank":  # what cannot be compared, and what ranks may differ in

    def objective(guess: np.ndarray, data: lgb.Dataset) -> tuple[np.ndarray, np.ndarray]:
        probability = 1 / (1 + np.exp(-guess))
        return probability - data.get_label(), probability * (1 - probability)

    own = {"objective": objective, "verbose": -1 - RANK, "num_threads": 1 + RANK}
    booster = lgb.train({**PARAMETERS, **own, "nodes": "a:1,b:2"}, lgb.Dataset(mine, labels), 5)
    model = lgb.LGBMClassifier(n_estimators=3, random_state=np.random.RandomState(0), verbose=-1)
    model.fit(mine, labels)
    tell(booster, trees=booster.num_trees())
elif how == "unwritable":
    booster = lgb.train(PARAMETERS, lgb.Dataset(mine, labels), 5)
    try:
        lgb.save_model(booster, "none/model.txt")
    except lgb.DataError as error:
        tell(booster, error=str(error))
    lgb.save_model(booster, "model.txt")
elif how == "parameters":
    lgb.train({**PARAMETERS, "num_leaves": 15 + RANK}, lgb.Dataset(mine, labels), 5)
elif how == "empty":
    lgb.train(PARAMETERS, lgb.Dataset(mine if RANK else mine[:0], labels if RANK else labels[:0]))
elif how == "columns":
    lgb.train(PARAMETERS, lgb.Dataset(mine[:, RANK:], labels), 5)
elif how == "dies":

    def die(env: object) -> None:
        if RANK == 1 and env.iteration == 3:  # type: ignore[attr-defined]
            raise RuntimeError("a fault of this rank")

    lgb.train(PARAMETERS, lgb.Dataset(mine, labels), 300, callbacks=[die])
elif how == "save":
    booster = lgb.train(PARAMETERS, lgb.Dataset(mine, labels), 5)
    lgb.save_model(booster, "model.txt")
    tell(lgb.Booster(model_file="model.txt"))
elif how == "machines":  # LightGBM itself, as its documentation has it
    import lightgbm

    machines = [f"127.0.0.1:{12400 + each}" for each in range(SIZE)]
    booster = lightgbm.train(
        {**PARAMETERS, "tree_learner": "data", "num_machines": SIZE, "pre_partition": True,
         "machines": ",".join(machines), "local_listen_port": 12400},
        lightgbm.Dataset(mine, labels), 30,
    )  # fmt: skip
    tell(booster, lent="shanty.lightgbm.network" in sys.modules)
