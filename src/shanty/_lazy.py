"""Names of a package that are loaded at their first use (PEP 562), ahead of a framework's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def names_over(package: str, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for `package`, in which a framework is used with names of our own.

    load: imports the module that has a name: one of the package's, or else the framework.

    A module of the package is never taken for the framework's of the same name: `from package
    import module` asks `__getattr__` first, and imports the package's own on AttributeError.
    """

    def find(name: str) -> Any:
        unknown = f"module {package!r} has no attribute {name!r}"
        if name.startswith("__") or find_spec(f"{package}.{name}"):
            raise AttributeError(unknown)
        home = load(name)
        if not hasattr(home, name):
            raise AttributeError(f"{unknown}, nor has {home.__name__}")
        found = getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    return find
