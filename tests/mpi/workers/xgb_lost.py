"""A training that never ends, but for a rank that goes in the middle of it.

xgb_lost.py kill|raise RANK
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import shanty.xgboost as xgb

HOW, WHO = sys.argv[1], int(sys.argv[2])


class Go(xgb.callback.TrainingCallback):
    def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
        if epoch == 5 and xgb.rank() == WHO:
            print("going", flush=True)
            if HOW == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("my mistake")
        return False


rng = np.random.default_rng(xgb.rank())
values = rng.random((2000, 10), dtype=np.float32)
matrix = xgb.DMatrix(values, values[:, 0] > 0.5)
xgb.train({"nthread": 1}, matrix, 1_000_000, callbacks=[Go()])
