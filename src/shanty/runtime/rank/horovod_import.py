"""Finds shanty's own `horovod` in a rank whose Python has no Horovod.

Loaded by path, as all that is in a rank, once the script has asked for `horovod`; it costs
nothing before. SHANTY_HOROVOD decides: `0` never takes ours, `1` takes it although Horovod itself
is installed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

VARIABLE = "SHANTY_HOROVOD"
_NEEDS = (3, 11)  # the Python of all that a script imports of shanty


def find(name: str, target: Any, finders: Sequence[Any]) -> tuple[Any, bool]:
    """Return the spec for the package `name`, or None, and whether it is ours.

    `finders` are the other ones. A folder that happens to have the name is no installed package.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice == "0":
        return None, False
    if choice != "1":
        for finder in finders:
            spec = finder.find_spec(name, None, target) if hasattr(finder, "find_spec") else None
            if spec is not None and spec.loader is not None and spec.origin is not None:
                return spec, False
    if sys.version_info < _NEEDS:
        python = ".".join(map(str, sys.version_info[:2]))
        wanted = ".".join(map(str, _NEEDS))
        raise ModuleNotFoundError(
            f"No module named {name!r}: shanty's own needs Python {wanted}, this is {python}",
            name=name,
        )
    try:  # the one that goes with the shanty.torch which it is going to import
        folders = importlib.import_module("shanty").__path__
    except ImportError:
        return None, False
    places = [os.path.join(folder, "compat") for folder in folders]
    spec = importlib.machinery.PathFinder.find_spec(name, places, target)
    return spec, spec is not None
