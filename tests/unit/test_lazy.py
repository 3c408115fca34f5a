"""Packages over a framework: which names are theirs, and which the framework's."""

from __future__ import annotations

import subprocess
import sys


def test_names_over_a_framework() -> None:
    """XGBoost has a module `training`, too; its `train` trains on each rank alone.

    The module of the package is imported last, as the first one of the package.
    """
    code = (
        "import sys, shanty.lightgbm as l, shanty.xgboost as x\n"
        "print(hasattr(x, 'training'), x.train.__module__, l.train.__module__)\n"
        "print(x.collective.__name__, l.plotting.__name__, hasattr(x, 'nothing'))\n"
        "ours = [name for name in sys.modules if name.startswith('shanty.xgboost')]\n"
        "assert list(map(sys.modules.pop, ours))\n"
        "from shanty.xgboost import training\n"
        "print(training.__name__, training.train.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "False", "shanty.xgboost.training", "shanty.lightgbm.training",
        "xgboost.collective", "lightgbm.plotting", "False",
        "shanty.xgboost.training", "shanty.xgboost.training",
    ]  # fmt: skip
