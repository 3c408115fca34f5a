"""One training of xgboost_scale.py.

    xgboost_scale_work.py shanty|dask|one WORKERS ROWS COLUMNS ROUNDS

Prints one line of JSON: model (the time of day at which there was one), training (seconds), logloss
(on rows that nobody trained on), and for shanty the seconds of the bring-up.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

WHO = sys.argv[1]
WORKERS, ROWS, COLUMNS, ROUNDS = map(int, sys.argv[2:])
PARAMS = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6}


def features(block: int) -> np.ndarray:
    """Rows of one worker; block -1 is for the test."""
    count = 20_000 if block < 0 else ROWS // WORKERS
    return np.random.default_rng(block + 1).standard_normal((count, COLUMNS), dtype=np.float32)


def labels(values: np.ndarray) -> np.ndarray:
    """A little of each feature, products among them, and chance."""
    noise = np.random.default_rng(len(values)).standard_normal(len(values), dtype=np.float32)
    weights = np.cos(np.arange(COLUMNS, dtype=np.float32))
    product = values[:, 0] * values[:, 1] + values[:, 2] * values[:, 3]
    return (values @ weights + 2 * product + noise > 0).astype(np.float32)


def told(booster: object, training: float, **more: float) -> None:
    """Print what was measured."""
    model = time.time()
    test = features(-1)
    chance = np.clip(booster.inplace_predict(test), 1e-7, 1 - 1e-7)
    truth = labels(test)
    logloss = -float(np.mean(truth * np.log(chance) + (1 - truth) * np.log(1 - chance)))
    print(
        json.dumps({"model": model, "training": training, **more, "logloss": logloss}), flush=True
    )


def shanty() -> None:
    import shanty.xgboost as xgb

    bring_up = xgb.init  # the name alone loads XGBoost, which is none of it
    begun = time.perf_counter()
    bring_up()
    up = time.perf_counter() - begun
    values = features(xgb.rank())
    truth = labels(values)
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # else the wait for the slowest block would count as training
    begun = time.perf_counter()
    matrix = xgb.DMatrix(values, truth, nthread=1)
    booster = xgb.train({**PARAMS, "nthread": 1}, matrix, ROUNDS)
    training = time.perf_counter() - begun
    if xgb.rank() == 0:
        told(booster, training, **{"bring-up": up})


def dask() -> None:
    from dask import array, delayed
    from dask.distributed import Client, LocalCluster, wait
    from xgboost import dask as dxgb

    with (
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        rows = ROWS // WORKERS
        blocks = [delayed(features)(block) for block in range(WORKERS)]
        X = array.concatenate(  # noqa: N806
            [array.from_delayed(each, (rows, COLUMNS), np.float32) for each in blocks]
        )
        y = array.concatenate(
            [array.from_delayed(delayed(labels)(each), (rows,), np.float32) for each in blocks]
        )
        X, y = client.persist([X, y])  # noqa: N806
        wait([X, y])
        begun = time.perf_counter()
        matrix = dxgb.DaskDMatrix(client, X, y)
        found = dxgb.train(client, {**PARAMS, "nthread": 1}, matrix, num_boost_round=ROUNDS)
        told(found["booster"], time.perf_counter() - begun)


def one() -> None:
    import xgboost

    parts = [features(block) for block in range(WORKERS)]
    truth = np.concatenate([labels(each) for each in parts])
    values = np.concatenate(parts)
    begun = time.perf_counter()
    matrix = xgboost.DMatrix(values, truth, nthread=WORKERS)
    booster = xgboost.train({**PARAMS, "nthread": WORKERS}, matrix, ROUNDS)
    told(booster, time.perf_counter() - begun)


if __name__ == "__main__":
    {"shanty": shanty, "dask": dask, "one": one}[WHO]()
