"""Loads a module with environment variables of its own, and calls back when that is done.

Light: every rank that imports an MPI or a framework has it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping


class CallingLoader:
    """Loads as `loader` does, with the variables `during` set meanwhile; `then` gets the module."""

    def __init__(self, loader: Any, then: Callable[[Any], None], during: Mapping[str, str]) -> None:
        self._loader = loader
        self._then = then
        self._during = during

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        """Load it, and call `then`."""
        module.__spec__.loader = module.__loader__ = self._loader
        before = {name: os.environ.get(name) for name in self._during}
        os.environ.update(self._during)
        try:
            self._loader.exec_module(module)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        self._then(module)
