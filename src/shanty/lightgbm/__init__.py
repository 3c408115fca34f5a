"""LightGBM over MPI: every rank trains on its share of the rows, and all get the same model.

    import shanty.lightgbm as lgb

    booster = lgb.train({"objective": "binary"}, lgb.Dataset(x, y), 100)   # this rank's rows
    lgb.save_model(booster, "model.txt")                                   # once

`network` lends LightGBM the MPI of the run; `training` and `estimators` train. Every other name is
LightGBM's own. Importing this package loads nothing of it yet.
"""

from typing import TYPE_CHECKING, Any

from shanty._lazy import names_over
from shanty._singleton import leave_nothing

if TYPE_CHECKING:
    from shanty.lightgbm.errors import DataError as DataError
    from shanty.lightgbm.errors import WorldError as WorldError
    from shanty.lightgbm.estimators import LGBMClassifier as LGBMClassifier
    from shanty.lightgbm.estimators import LGBMRanker as LGBMRanker
    from shanty.lightgbm.estimators import LGBMRegressor as LGBMRegressor
    from shanty.lightgbm.network import finalize as finalize
    from shanty.lightgbm.network import init as init
    from shanty.lightgbm.network import is_initialized as is_initialized
    from shanty.lightgbm.network import rank as rank
    from shanty.lightgbm.network import size as size
    from shanty.lightgbm.training import Dataset as Dataset
    from shanty.lightgbm.training import cv as cv
    from shanty.lightgbm.training import save_model as save_model
    from shanty.lightgbm.training import train as train

__all__ = [
    *("DataError", "Dataset", "LGBMClassifier", "LGBMRanker", "LGBMRegressor", "WorldError"),
    *("cv", "finalize", "init", "is_initialized", "rank", "save_model", "size", "train"),
]


def _load(name: str) -> Any:
    """Import the module that has a name; for every other name LightGBM itself."""
    if name not in __all__:
        from shanty.lightgbm.installed import lightgbm

        return lightgbm
    if name.startswith("LGBM"):  # which needs scikit-learn
        from shanty.lightgbm import estimators

        return estimators
    from shanty.lightgbm import network, training

    return network if hasattr(network, name) else training


leave_nothing()
__getattr__ = names_over(__name__, _load)
