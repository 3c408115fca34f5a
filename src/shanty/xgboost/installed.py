"""XGBoost, of a version that this package can speak to."""

from __future__ import annotations

OLDEST = (3, 0)
_NEEDED = f"shanty.xgboost needs XGBoost {OLDEST[0]}.{OLDEST[1]} or later"
_INSTALL = 'pip install "xgboost-cpu>=3.0"  (or xgboost, which brings CUDA)'

try:
    import xgboost
    import xgboost.collective
    import xgboost.tracker
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "xgboost":
        raise
    raise ImportError(
        f"shanty.xgboost needs XGBoost, which is not installed for this Python: {_INSTALL}"
        if error.name == "xgboost"
        else f"{_NEEDED}: {_INSTALL}",
        name=error.name,
    ) from None

if tuple(int(part) for part in xgboost.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"{_NEEDED}, but {xgboost.__version__} is installed: {_INSTALL}", name="xgboost"
    )

__all__ = ["xgboost"]
