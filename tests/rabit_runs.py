"""What a run of examples/xgboost/main.py on Fashion-MNIST has to come to, wherever it was."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import fashion

NEEDS = pytest.mark.skipif(
    importlib.util.find_spec("xgboost") is None, reason="XGBoost is not installed"
)
ROUNDS = 20
TOLERANCE = 0.005  # of the test error, from that of one process on all rows


@cache
def error_alone() -> float:
    """The test error of XGBoost itself, in one process that has all rows."""
    import xgboost

    parts = (("train", fashion.TRAIN), ("t10k", fashion.TEST))
    train, test = (
        xgboost.DMatrix(images.astype(float), label=labels, missing=0.0)
        for images, labels in (fashion.load(part, rows) for part, rows in parts)
    )
    params = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.3, "nthread": 1}
    booster = xgboost.train({**params, "eval_metric": "error"}, train, ROUNDS)
    found = float(booster.eval(test).rpartition(":")[2])
    assert 0.02 < found < 0.09  # a tenth of them are shirts
    return found


def error(output: str) -> float:
    """The test error that the script printed, once."""
    found = re.findall(r"test error (0\.\d+)", output)
    assert len(found) == 1, output
    return float(found[0])


def judge(done: subprocess.CompletedProcess[str], artifacts: Path, data: Path) -> None:
    """Look at what workers/xgb_main.py kept: every row once, one model, saved once, as good."""
    kept = sorted(artifacts.rglob("rank-*.json"))
    assert [path.stem for path in kept] == ["rank-0", "rank-1", "rank-2"]
    seen = [json.loads(path.read_text()) for path in kept]
    for name in ("train", "test"):
        whole = fashion.rows_of((data / f"{name}.libsvm").read_text())
        parts = [fashion.rows_of(each[name]) for each in seen]
        assert sum(parts, Counter()) == whole
        counts = [part.total() for part in parts]
        assert min(counts) > whole.total() / len(parts) / 2, counts
    assert len({each["model"] for each in seen}) == 1
    assert [path.name for path in artifacts.rglob("*.model")] == ["0001.model"]
    assert abs(error(done.stdout) - error_alone()) <= TOLERANCE
    assert "silent=1 is now verbosity=0" in done.stderr
    assert done.stderr.count("OldNameWarning") == 1, done.stderr
