"""Learn to read handwritten digits with XGBoost, each rank on its share of a text file.

    shanty run -n 2 examples/xgboost/digits.py --rounds 60
    shanty run -n 2 examples/xgboost/digits.py --train 'rows-*.libsvm' --test test.libsvm

The data are real (1,797 scans of 8 by 8 pixels) and come with scikit-learn; the script first writes
them to LibSVM files, as yours may be. `python examples/xgboost/digits.py` runs it on one process,
unchanged.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import dump_svmlight_file, load_digits

import shanty
import shanty.xgboost as xgb

CLASSES = 10


def write(folder: Path) -> tuple[Path, Path]:
    """Files of rows to train on and to test on, written once on each host."""
    train, test = folder / "train.libsvm", folder / "test.libsvm"
    if shanty.local_rank() == 0:
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        for path, rows in ((train, order[360:]), (test, order[:360])):
            dump_svmlight_file(images[rows], labels[rows], str(path))
    return train, test


def main() -> None:
    """Train, with early stopping; test; save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--max-depth", type=int, default=4)
    parser.add_argument("--train", help="files of your own: a path, a glob, a URI")
    parser.add_argument("--test")
    options = parser.parse_args()

    train, test = options.train, options.test
    if not train:
        train, test = write(shanty.artifacts())
    xgb.init()  # all ranks are here: the files are written

    dtrain, dtest = xgb.DMatrix(train), xgb.DMatrix(test)
    print(f"{dtrain.num_row()} rows to train on, {dtest.num_row()} to test on")

    params = {
        "objective": "multi:softprob",
        "num_class": CLASSES,
        "max_depth": options.max_depth,
        "eval_metric": ["merror", "mlogloss"],
    }
    found: dict[str, dict[str, list[float]]] = {}
    booster = xgb.train(
        params,
        dtrain,
        options.rounds,
        evals=[(dtrain, "train"), (dtest, "test")],
        evals_result=found,
        early_stopping_rounds=10,
        verbose_eval=10,
    )
    path = shanty.artifacts() / "digits.json"
    xgb.save_model(booster, path)
    if xgb.rank() == 0:
        error = found["test"]["merror"][booster.best_iteration]
        print(f"{xgb.size()} ranks, model saved to {path}")
        print(f"test accuracy {1 - error:.4f} after {booster.best_iteration + 1} rounds")


if __name__ == "__main__":
    main()
