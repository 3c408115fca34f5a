"""LightGBM, of a version that this package can speak to."""

from __future__ import annotations

OLDEST = (4, 0)
_INSTALL = 'pip install "lightgbm>=4.0"'

try:
    import lightgbm
except ModuleNotFoundError as error:
    if error.name != "lightgbm":
        raise
    raise ImportError(
        f"shanty.lightgbm needs LightGBM, which is not installed for this Python: {_INSTALL}",
        name="lightgbm",
    ) from None

if tuple(int(part) for part in lightgbm.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"shanty.lightgbm needs LightGBM {OLDEST[0]}.{OLDEST[1]} or later, but "
        f"{lightgbm.__version__} is installed: {_INSTALL}",
        name="lightgbm",
    )

__all__ = ["lightgbm"]
