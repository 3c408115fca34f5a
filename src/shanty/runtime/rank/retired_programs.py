"""Programs that are no more, and the Python modules that do their work.

XGBoost had a program of its own, `xgboost train.conf key=value`, up to version 3.1.
"""

from __future__ import annotations

import os

_MODULES = {"xgboost": "shanty.compat.xgboost_program"}


def stand_in(argv: list[str], python: str) -> list[str]:
    """`argv`, or a line for `python` with the module in place of a program that is not there."""
    module = _MODULES.get(os.path.basename(argv[0]))
    if module is None:
        return argv
    import shutil

    if shutil.which(argv[0]) is not None:
        return argv
    return [python, "-m", module, *argv[1:]]
