"""Gives older scripts `xgboost.rabit` in a rank whose XGBoost no longer has it.

Loaded by path, as all that is in a rank, once the script has imported xgboost. It changes nothing
until the script asks for `xgboost.rabit`, as `xgb.rabit` or in an import; then it is shanty's own,
which changes nothing either until `rabit.init()`. An XGBoost that has a rabit itself keeps it, but
cannot make each rank a world of its own unseen. SHANTY_XGBOOST=0 turns all of it off.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

VARIABLE = "SHANTY_XGBOOST"
RABIT = "xgboost.rabit"
_PACKAGE = "shanty.compat.xgboost_rabit"
_TRACKER = "DMLC_TRACKER_URI"  # in rabit's settings: where the ranks find each other
_NEEDS = (3, 11)  # the Python of all that a script imports of shanty


def offer(xgboost: Any, *_: object) -> None:
    """Let `xgboost.rabit` be found; one that XGBoost has itself is only guarded."""
    if os.environ.get(VARIABLE, "") == "0":
        return
    if hasattr(xgboost, "rabit"):
        guard(xgboost.rabit, xgboost.__version__)
        return
    other = getattr(xgboost, "__getattr__", None)

    def find(name: str) -> Any:
        if name == "rabit":
            try:
                return importlib.import_module(RABIT)
            except ImportError as error:
                raise AttributeError(
                    f"module 'xgboost' has no attribute 'rabit': {error}"
                ) from error
        if other is not None:
            return other(name)
        raise AttributeError(f"module 'xgboost' has no attribute {name!r}")

    xgboost.__getattr__ = find
    sys.meta_path.insert(0, RabitFinder())


def guard(rabit: Any, version: str) -> None:
    """Let the `init` of XGBoost's own rabit fail where nobody tells it of the other ranks."""
    own, ranks = rabit.init, os.environ.get("WORLD_SIZE", "1")

    def init(args: Any = None) -> Any:
        told = _TRACKER in os.environ or any(_TRACKER in str(word) for word in args or ())
        if ranks != "1" and not told:
            raise RuntimeError(
                f"The rabit of XGBoost {version} knows no MPI: each of the {ranks} ranks would "
                "train by itself, on all rows. With XGBoost 3 shanty joins them: "
                f"pip install -U xgboost. {VARIABLE}=0 leaves XGBoost alone."
            )
        return own(args)

    rabit.init = init


class RabitFinder:
    """Stands first in sys.meta_path from the import of xgboost on: it knows `xgboost.rabit`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Find the module in shanty.compat, unless XGBoost has one; nothing else is offered."""
        if name != RABIT:
            return None
        own = importlib.machinery.PathFinder.find_spec(name, path, target)
        if own is not None:
            return own
        if sys.version_info < _NEEDS:
            python = ".".join(map(str, sys.version_info[:2]))
            wanted = ".".join(map(str, _NEEDS))
            raise ModuleNotFoundError(
                f"No module named {name!r}: shanty's own needs Python {wanted}, this is {python}",
                name=name,
            )
        try:
            folders = importlib.import_module(_PACKAGE).__path__
        except ImportError:
            return None
        instrumentation = sys.modules.get("_shanty_instrumentation")
        if instrumentation is not None:  # processes of multiprocessing import the script, too
            instrumentation.hook_children()
        return importlib.machinery.PathFinder.find_spec(name, folders, target)
