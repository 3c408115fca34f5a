"""A large LibSVM file loaded by all ranks, and by XGBoost's own reader: what it costs.

Arguments: "ranks" or "alone", and the file. Prints a line of JSON for each process: rows, entries,
CPU seconds of the loading (user and system), the highest resident memory of the process in bytes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import xgboost


def memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def seconds() -> float:
    now = os.times()
    return now.user + now.system


def main(how: str, file: str) -> None:
    uri = f"{file}?format=libsvm"
    if how == "alone":
        xgboost.set_config(verbosity=0)
        before = seconds()
        matrix = xgboost.DMatrix(uri)
        spent = seconds() - before
        rank = 0
    else:
        import shanty.xgboost as xgb

        with xgb.communicator():
            rank = xgb.rank()
            xgb.DMatrix(
                np.zeros((2, 2))
            )  # what is loaded and made at a first use is not the file's
            before = seconds()
            matrix = xgb.DMatrix(uri)
            spent = seconds() - before
    report = {
        "rank": rank,
        "rows": matrix.num_row(),
        "entries": matrix.num_nonmissing(),
        "labels": float(matrix.get_label().sum(dtype=np.float64)),
        "seconds": spent,
        "peak": memory("VmHWM"),
    }
    print("LOADED " + json.dumps(report), flush=True)


main(*sys.argv[1:])
