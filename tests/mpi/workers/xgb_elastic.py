"""Trains for 20 rounds in an elastic run; some ranks are lost, by their numbers: `1`, `0,2`.

xgb_elastic.py train|dart|fit RANKS [raise]: the first is lost after round 6, the second after 12;
killed, or by an exception of their callback. Each rank that is left prints one line of JSON.
"""

import hashlib
import json
import os
import signal
import sys
import threading

import numpy as np

import shanty.xgboost as xgb

HOW, LOST = sys.argv[1], [int(word) for word in sys.argv[2].split(",") if word]
first = xgb.rank()
PLACE = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
epochs = []


class Go(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        epochs.append(epoch)
        assert [len(each) for each in evals_log["mine"].values()] == [len(set(epochs))] * 2
        if epoch in (6, 12) and LOST[epoch == 12 :][:1] == [first]:
            if "raise" in sys.argv:
                raise KeyError("planted")
            threading.Timer(0.003, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return False


def rows(seed, count):
    values = np.random.default_rng(seed).random((count, 10), dtype=np.float32)
    return values, (values[:, 0] + values[:, 1] * values[:, 2] > 0.8).astype(int)


params = {"nthread": 1, "objective": "binary:logistic", "eval_metric": ["error", "logloss"]}
params |= {"booster": "dart", "rate_drop": 0.3} if HOW == "dart" else {}
mine, test = rows(first, 20_000), rows(99, 2000)
found = {}
if HOW == "fit":
    names = {"n_estimators": 20, "n_jobs": 1, "eval_metric": params["eval_metric"]}
    model = xgb.XGBClassifier(callbacks=[Go()], early_stopping_rounds=15, **names)

    class Named(Go):
        def after_iteration(self, model, epoch, evals_log):
            return super().after_iteration(model, epoch, {"mine": evals_log["validation_0"]})

    model.callbacks = [Named()]
    model.fit(*mine, eval_set=[mine], verbose=False)
    booster, found = model.get_booster(), {"mine": model.evals_result()["validation_0"]}
else:
    matrix = xgb.DMatrix(*mine)
    booster = xgb.train(
        params, matrix, 20, evals=[(matrix, "mine")], callbacks=[Go()], evals_result=found,
        verbose_eval=False, early_stopping_rounds=15,
    )  # fmt: skip
chances = booster.predict(xgb.DMatrix(test[0]))
told = {
    "first": first, "rank": xgb.rank(), "size": xgb.size(), "rounds": booster.num_boosted_rounds(),
    "place": [os.environ[name] for name in PLACE],
    "sum": hashlib.sha256(booster.save_raw("ubj")).hexdigest(), "epochs": epochs,
    "history": {name: len(each) for name, each in found["mine"].items()},
    "loss": float(-np.log(np.where(test[1], chances, 1 - chances)).mean()),
}  # fmt: skip
print(json.dumps(told), flush=True)
