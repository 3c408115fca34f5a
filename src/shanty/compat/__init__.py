"""Packages that stand in for others, so that unchanged scripts run: `horovod` is one.

A run puts them in place of what is not installed; `install` does so in any process. The package
shanty-horovod does so in every process of an environment.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_NAMES = ("horovod",)


def find_spec(
    name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> importlib.machinery.ModuleSpec | None:
    """Find one of the packages in our folder; nothing else is offered."""
    if path is not None or name not in _NAMES:
        return None
    folder = str(Path(__file__).parent)
    return importlib.machinery.PathFinder.find_spec(name, [folder], target)


class _Finder:
    """The last of sys.meta_path: what is installed comes first."""

    find_spec = staticmethod(find_spec)


def install() -> None:
    """Make `import horovod` work in this process, wherever Horovod itself is not installed.

    For notebooks and for scripts that start ranks by `horovod.run`; in a run it is so anyway.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
