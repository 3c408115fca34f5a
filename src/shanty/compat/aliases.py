"""Modules of shanty under the names that they have in another package."""

from __future__ import annotations

import sys
from types import ModuleType


def alias(package: str, **modules: ModuleType) -> None:
    """Let `import package.NAME` give one of these modules, and have it as `package.NAME`."""
    for name, module in modules.items():
        sys.modules[f"{package}.{name}"] = module
        setattr(sys.modules[package], name, module)
