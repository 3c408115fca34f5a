"""Starts MPI in a process that no launcher has started, such that nothing is left of it.

Open MPI 5 leaves a singleton's session folder in TMPDIR, and its shared memory in /dev/shm
(https://github.com/open-mpi/ompi/issues/13261). It has nobody to share memory with, so it is told
to make none; its folder is one that goes at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from shanty.runtime.mpi.processes import RANK, number

_MPI = "mpi4py.MPI"
_NETWORKS = "OMPI_MCA_btl"


def leave_nothing() -> None:
    """Have the first import of mpi4py.MPI leave nothing, where no launcher is there to clean up."""
    if _MPI not in sys.modules and number(os.environ, RANK) is None:
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
            spec.loader = _Loading(spec.loader)
        return spec


class _Loading(Loader):
    """Loads mpi4py.MPI, which calls MPI_Init."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        with _settings():
            self._own.exec_module(module)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="shanty-mpi-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    values = {"TMPDIR": folder, _NETWORKS: os.environ.get(_NETWORKS, "^sm")}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
