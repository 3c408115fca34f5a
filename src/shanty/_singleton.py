"""Starts MPI in a process that no launcher has started, such that nothing is left of it."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from shanty.runtime.mpi.processes import RANK, number, singleton_settings
from shanty.runtime.rank.calling_loader import CallingLoader

_MPI = "mpi4py.MPI"  # whose import calls MPI_Init


def leave_nothing() -> None:
    """Have the first import of mpi4py.MPI leave nothing, where no launcher is there to clean up."""
    known = _MPI in sys.modules or any(isinstance(each, _Finder) for each in sys.meta_path)
    if not known and number(os.environ, RANK) is None:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MPI:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            folder = tempfile.mkdtemp(prefix="shanty-mpi-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            settings = singleton_settings(os.environ, folder)
            loader: Any = CallingLoader(spec.loader, lambda _module: None, settings)
            spec.loader = loader
        return spec
