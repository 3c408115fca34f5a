"""Names of a package that are loaded at their first use (PEP 562), ahead of a framework's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_over(
    package: str, modules: Mapping[str, Sequence[str]], framework: str
) -> Callable[[str], Any]:
    """Returns a `__getattr__` for `package`, in which a framework is used with names of our own.

    `modules`: the package's modules, and the names that each of them gives. Every other name is
    that of `framework`, a module which `<package>.installed` has imported.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        unknown = f"module {package!r} has no attribute {name!r}"
        if name.startswith("__"):
            raise AttributeError(unknown)
        if name in home:
            found = getattr(import_module(f"{package}.{home[name]}"), name)
        else:
            own = getattr(import_module(f"{package}.installed"), framework)
            if not hasattr(own, name):
                raise AttributeError(f"{unknown}, nor has {framework}")
            found = getattr(own, name)
        setattr(sys.modules[package], name, found)
        return found

    return find
