"""Distributed XGBoost as scripts had it in 2018.

    dmlc-submit --cluster mpi --num-workers 3 python examples/xgboost/main.py --data_dir DIR

DIR holds train.libsvm and test.libsvm, with labels 0 and 1.
"""

from __future__ import print_function

import argparse
import os

import xgboost as xgb


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_round", type=int, default=50)
    parser.add_argument("--data_dir", default=".")
    parser.add_argument("--model_dir", default=".")
    args = parser.parse_args()

    xgb.rabit.init()
    rank = xgb.rabit.get_rank()
    print(
        "worker %d of %d on %s"
        % (rank, xgb.rabit.get_world_size(), xgb.rabit.get_processor_name().decode())
    )

    # with rabit, each worker loads its part of the rows
    dtrain = xgb.DMatrix(os.path.join(args.data_dir, "train.libsvm"))
    dtest = xgb.DMatrix(os.path.join(args.data_dir, "test.libsvm"))
    print(
        "worker %d has %d rows to train on, %d to test on"
        % (rank, dtrain.num_row(), dtest.num_row())
    )

    param = {
        "objective": "binary:logistic",
        "max_depth": 6,
        "eta": 0.3,
        "silent": 1,
        "eval_metric": "error",
    }
    history = {}
    bst = xgb.train(
        param,
        dtrain,
        args.num_round,
        [(dtrain, "train"), (dtest, "test")],
        evals_result=history,
        verbose_eval=10,
    )

    if rank == 0:
        bst.save_model(os.path.join(args.model_dir, "0001.model"))
        xgb.rabit.tracker_print("test error %.4f\n" % history["test"]["error"][-1])
    xgb.rabit.finalize()
    return dtrain, dtest, bst


if __name__ == "__main__":
    main()
