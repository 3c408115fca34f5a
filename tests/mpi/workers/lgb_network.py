"""Trains on this rank's rows of scikit-learn's breast cancer data: by shanty (`data`), by
LightGBM's own network (`machines`), or with a rank that fails in the middle (`dies`). Prints the
digest of the model and the host.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from socket import gethostname
from typing import Any

import lightgbm
from sklearn.datasets import load_breast_cancer

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
X, Y = load_breast_cancer(return_X_y=True)
MINE, LABELS = X[RANK::SIZE], Y[RANK::SIZE]
PARAMETERS = {
    "objective": "binary", "verbose": -1, "num_leaves": 15, "num_threads": 1, "seed": 3,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip


def digest(booster: lightgbm.Booster) -> str:
    text = booster.model_to_string(num_iteration=-1).partition("\nparameters:")[0]
    return hashlib.sha256(text.encode()).hexdigest()


def die(env: Any) -> None:
    if RANK == 1 and env.iteration == 3:
        raise RuntimeError("a fault of this rank")


def by_own_network() -> lightgbm.Booster:
    """As LightGBM's documentation has it."""
    machines = [f"127.0.0.1:{12400 + each}" for each in range(SIZE)]
    parameters = {
        **PARAMETERS, "tree_learner": "data", "num_machines": SIZE, "pre_partition": True,
        "machines": ",".join(machines), "local_listen_port": 12400,
    }  # fmt: skip
    booster = lightgbm.train(parameters, lightgbm.Dataset(MINE, LABELS), 30)
    assert "shanty.lightgbm.network" not in sys.modules
    return booster


def by_shanty(how: str) -> lightgbm.Booster:
    import shanty.lightgbm as lgb

    callbacks, rounds = ([die], 300) if how == "dies" else (None, 30)
    return lgb.train(PARAMETERS, lgb.Dataset(MINE, LABELS), rounds, callbacks=callbacks)


if __name__ == "__main__":
    how = sys.argv[1]
    booster = by_own_network() if how == "machines" else by_shanty(how)
    print(json.dumps({"digest": digest(booster), "host": gethostname()}))
