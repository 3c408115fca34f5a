"""Replaces XGBoost's own by what old scripts call, once a script calls rabit.init.

Classes are changed in place, so that names imported before (`from xgboost import DMatrix`) are
the same; functions are put into the modules that have them, the script's and those it uses.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import xgboost
from xgboost import core, training

from shanty.compat.xgboost_rabit import calls, files
from shanty.compat.xgboost_rabit.calls import tell

_in_place = False


def put_in_place() -> None:
    """Puts them in place; a second call changes nothing."""
    global _in_place
    if _in_place:
        return
    _in_place = True
    booster = core.Booster
    new: list[tuple[Any, str, Any]] = [
        (core.DMatrix, "__init__", files.initialise(core.DMatrix.__init__)),
        (booster, "set_param", calls.set_param(booster.set_param)),
        (booster, "predict", calls.predict(booster.predict)),
    ]
    missing: list[tuple[Any, str, Any]] = [
        (booster, "best_ntree_limit", property(calls.best_ntree_limit)),
        (booster, "load_rabit_checkpoint", _load_checkpoint),
        (booster, "save_rabit_checkpoint", _save_checkpoint),
    ]
    for name, wrap in (("train", calls.train), ("cv", calls.cv)):
        old = getattr(training, name)
        wrapped = wrap(old)
        new += [(xgboost, name, wrapped), (training, name, wrapped)]
        _rebind(old, wrapped)
    for model in _models():
        for name in ("predict", "predict_proba", "apply"):
            if name in vars(model):
                new.append((model, name, calls.predict_by_model(getattr(model, name))))
        if "fit" in vars(model):
            new.append((model, "fit", calls.fit(model.fit)))
        if "_configure_fit" in vars(model):
            new.append((model, "_configure_fit", calls.configure(model._configure_fit)))
        missing.append((model, "best_ntree_limit", property(calls.best_ntree_limit)))
    new += [each for each in missing if not hasattr(each[0], each[1])]
    for owner, name, value in new:
        setattr(owner, name, value)


def _rebind(old: object, new: object) -> None:
    """Puts `new` where modules have imported `old` by name; XGBoost's own keep what they have."""
    modules: list[tuple[str, object]] = list(sys.modules.items())  # values may be of any type
    for name, module in modules:
        if not isinstance(module, ModuleType) or name.partition(".")[0] in ("shanty", "xgboost"):
            continue
        names = object.__getattribute__(module, "__dict__")  # triggers no lazy module
        for each in [key for key, value in list(names.items()) if value is old]:
            names[each] = new


def _models() -> list[Any]:
    """The scikit-learn classes; none without scikit-learn."""
    base = getattr(xgboost, "XGBModel", None)
    if base is None:
        return []
    found = [each for each in vars(xgboost.sklearn).values() if isinstance(each, type)]
    return [each for each in found if issubclass(each, base)]


def _load_checkpoint(self: Any) -> int:
    """`Booster.load_rabit_checkpoint`: version 0, nothing to go on from."""
    return 0


def _save_checkpoint(self: Any) -> None:
    """`Booster.save_rabit_checkpoint`: nothing is kept in memory for a rank that comes back."""
    tell(["save_rabit_checkpoint does nothing: a rank that dies ends the run"])
