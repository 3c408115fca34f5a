"""One training of trees_scale.py.

    trees_scale_work.py xgboost|lightgbm shanty|dask|one WORKERS DATA ROUNDS

DATA is ROWSxCOLUMNS, or `fashion`. Prints one line of JSON: model (the time of day at which there
was one), training (seconds), logloss (on rows that nobody trained on), and for shanty the seconds
of the bring-up.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np

LIBRARY, WHO, _, DATA, _ = sys.argv[1:]
WORKERS, ROUNDS = int(sys.argv[3]), int(sys.argv[5])
FASHION = Path("/usr/share/datasets/fashion-mnist")
ROWS, COLUMNS = (60_000, 784) if DATA == "fashion" else map(int, DATA.split("x"))
XGBOOST = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6}
LIGHTGBM = {"objective": "binary", "num_leaves": 63, "verbose": -1, "force_row_wise": True}


def table(block: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of one worker; block -1 is for the test."""
    return fashion(block) if DATA == "fashion" else made(block)


def fashion(block: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of Fashion-MNIST, and whether each is one of the last five kinds."""
    part = "t10k" if block < 0 else "train"
    with gzip.open(FASHION / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, COLUMNS)
    with gzip.open(FASHION / f"{part}-labels-idx1-ubyte.gz") as file:
        kinds = np.frombuffer(file.read(), np.uint8, offset=8)
    rows = slice(None) if block < 0 else slice(block * size(), (block + 1) * size())
    return pixels[rows].astype(np.float32), (kinds[rows] >= 5).astype(np.float32)


def made(block: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows from a seed; a label is a little of each feature, products among them, and chance."""
    count = 20_000 if block < 0 else size()
    values = np.random.default_rng(block + 1).standard_normal((count, COLUMNS), dtype=np.float32)
    noise = np.random.default_rng(count).standard_normal(count, dtype=np.float32)
    weights = np.cos(np.arange(COLUMNS, dtype=np.float32))
    product = values[:, 0] * values[:, 1] + values[:, 2] * values[:, 3]
    return values, (values @ weights + 2 * product + noise > 0).astype(np.float32)


def size() -> int:
    """Rows of one worker."""
    return ROWS // WORKERS


def told(booster: object, training: float, **more: float) -> None:
    """Print what was measured."""
    model = time.time()
    values, truth = table(-1)
    predict = booster.inplace_predict if LIBRARY == "xgboost" else booster.predict
    chance = np.clip(predict(values), 1e-7, 1 - 1e-7)
    logloss = -float(np.mean(truth * np.log(chance) + (1 - truth) * np.log(1 - chance)))
    print(
        json.dumps({"model": model, "training": training, **more, "logloss": logloss}), flush=True
    )


def train(library: object, values: np.ndarray, truth: np.ndarray, threads: int) -> object:
    """Make the library's matrix of rows, and train on it."""
    if LIBRARY == "xgboost":
        matrix = library.DMatrix(values, truth, nthread=threads)
        return library.train({**XGBOOST, "nthread": threads}, matrix, ROUNDS)
    return library.train(
        {**LIGHTGBM, "num_threads": threads}, library.Dataset(values, truth), ROUNDS
    )


def shanty() -> None:
    if LIBRARY == "xgboost":
        import shanty.xgboost as library
    else:
        import shanty.lightgbm as library

    bring_up = library.init  # the name alone loads the library, which is none of it
    begun = time.perf_counter()
    bring_up()
    up = time.perf_counter() - begun
    rows = table(library.rank())
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # else the wait for the slowest block would count as training
    begun = time.perf_counter()
    booster = train(library, *rows, 1)
    training = time.perf_counter() - begun
    if library.rank() == 0:
        told(booster, training, **{"bring-up": up})


def dask() -> None:
    from dask import array, delayed
    from dask.distributed import Client, LocalCluster, wait

    with (
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        blocks = [delayed(table, nout=2)(block) for block in range(WORKERS)]
        X = array.concatenate(  # noqa: N806
            [array.from_delayed(each[0], (size(), COLUMNS), np.float32) for each in blocks]
        )
        y = array.concatenate(
            [array.from_delayed(each[1], (size(),), np.float32) for each in blocks]
        )
        X, y = client.persist([X, y])  # noqa: N806
        wait([X, y])
        begun = time.perf_counter()
        booster = dask_train(client, X, y)
        told(booster, time.perf_counter() - begun)


def dask_train(client: object, X: object, y: object) -> object:  # noqa: N803
    if LIBRARY == "xgboost":
        from xgboost import dask as dxgb

        matrix = dxgb.DaskDMatrix(client, X, y)
        return dxgb.train(client, {**XGBOOST, "nthread": 1}, matrix, num_boost_round=ROUNDS)[
            "booster"
        ]
    from lightgbm.dask import DaskLGBMClassifier

    model = DaskLGBMClassifier(client=client, n_estimators=ROUNDS, tree_learner="data", **LIGHTGBM)
    return model.fit(X, y).booster_


def one() -> None:
    import importlib

    parts = [table(block) for block in range(WORKERS)]
    values, truth = (np.concatenate(each) for each in zip(*parts, strict=True))
    library = importlib.import_module(LIBRARY)
    begun = time.perf_counter()
    booster = train(library, values, truth, WORKERS)
    told(booster, time.perf_counter() - begun)


if __name__ == "__main__":
    {"shanty": shanty, "dask": dask, "one": one}[WHO]()
