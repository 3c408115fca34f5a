"""XGBoost over MPI: every rank reads and trains on its share of the rows.

    import shanty.xgboost as xgb

    dtrain = xgb.DMatrix("train.libsvm")          # this rank's share of the file
    booster = xgb.train({"objective": "binary:logistic"}, dtrain, 50)
    xgb.save_model(booster, "model.json")         # once

`communication` starts XGBoost's own, at the first use; `matrix` has the matrices, whose rows
`loading` reads and `text` parses; `training` and `estimators` train. Every other
name is XGBoost's own. Importing this package loads nothing of it yet.
"""

from typing import TYPE_CHECKING, Any

from shanty._lazy import names_over
from shanty._singleton import leave_nothing

if TYPE_CHECKING:
    from shanty.xgboost.communication import communicator as communicator
    from shanty.xgboost.communication import finalize as finalize
    from shanty.xgboost.communication import init as init
    from shanty.xgboost.communication import is_initialized as is_initialized
    from shanty.xgboost.communication import rank as rank
    from shanty.xgboost.communication import size as size
    from shanty.xgboost.errors import DataError as DataError
    from shanty.xgboost.errors import WorldError as WorldError
    from shanty.xgboost.estimators import XGBClassifier as XGBClassifier
    from shanty.xgboost.estimators import XGBRanker as XGBRanker
    from shanty.xgboost.estimators import XGBRegressor as XGBRegressor
    from shanty.xgboost.estimators import XGBRFClassifier as XGBRFClassifier
    from shanty.xgboost.estimators import XGBRFRegressor as XGBRFRegressor
    from shanty.xgboost.matrix import DMatrix as DMatrix
    from shanty.xgboost.matrix import QuantileDMatrix as QuantileDMatrix
    from shanty.xgboost.training import Report as Report
    from shanty.xgboost.training import cv as cv
    from shanty.xgboost.training import save_model as save_model
    from shanty.xgboost.training import train as train

__all__ = [
    *("DMatrix", "DataError", "QuantileDMatrix", "Report", "WorldError"),
    *("XGBClassifier", "XGBRFClassifier", "XGBRFRegressor", "XGBRanker", "XGBRegressor"),
    *("communicator", "cv", "finalize", "init", "is_initialized", "rank", "save_model", "size"),
    "train",
]


def _load(name: str) -> Any:
    """Import the module that has a name; for every other name XGBoost itself."""
    if name not in __all__:
        from shanty.xgboost.installed import xgboost

        return xgboost
    if name.startswith("XGB"):  # which needs scikit-learn
        from shanty.xgboost import estimators

        return estimators
    from shanty.xgboost import communication, matrix, training

    return next(each for each in (communication, matrix, training) if hasattr(each, name))


leave_nothing()
__getattr__ = names_over(__name__, _load)
